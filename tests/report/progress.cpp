#include <weft/report/progress.hpp>

#include <catch2/catch_all.hpp>

#include <fcntl.h>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace weft::report;
using namespace std::chrono_literals;
using Catch::Matchers::Matches;

namespace {

/// What was printed, to a plain file.
struct PlainFile {
  std::FILE* out = std::tmpfile();
  ~PlainFile() { std::fclose(out); }
  std::string text() const {
    std::string all;
    std::rewind(out);
    for (int letter; (letter = std::fgetc(out)) != EOF;) all += static_cast<char>(letter);
    return all;
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> lines{""};
    for (char const letter : text()) letter == '\n' ? lines.emplace_back() : lines.back() += letter;
    lines.pop_back();
    return lines;
  }
};

/// A terminal, so wide, and what it shows: rows of what is left of all that was written, overwritten, erased.
struct Terminal {
  int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  std::FILE* out = nullptr;
  std::size_t width;
  std::string raw;

  explicit Terminal(unsigned short columns = 80) : width(columns) {
    REQUIRE((::grantpt(master) == 0 && ::unlockpt(master) == 0));
    ::fcntl(master, F_SETFL, O_NONBLOCK);
    out = std::fopen(::ptsname(master), "w");
    REQUIRE(out);
    ::winsize size{};
    size.ws_col = columns;
    size.ws_row = 25;
    REQUIRE(::ioctl(::fileno(out), TIOCSWINSZ, &size) == 0);
  }
  ~Terminal() {
    std::fclose(out);
    ::close(master);
  }
  std::vector<std::string> rows() {
    std::fflush(out);
    char bytes[4096];
    for (ssize_t count; (count = ::read(master, bytes, sizeof bytes)) > 0;)
      raw.append(bytes, static_cast<std::size_t>(count));
    std::vector<std::string> rows{""};
    std::size_t column = 0;
    for (char const letter : raw) {
      if (letter == '\r') {
        column = 0;
      } else if (letter == '\n') {
        rows.emplace_back();
      } else {
        if (column == width) {  // wraps
          rows.emplace_back();
          column = 0;
        }
        auto& row = rows.back();
        row.resize(std::max(row.size(), column + 1), ' ');
        row[column++] = letter;
      }
    }
    for (auto& row : rows) row.erase(row.find_last_not_of(' ') + 1);
    return rows;
  }
};

struct WithTerm {
  WithTerm() { ::setenv("TERM", "xterm", 1); }
} const with_term;

ProgressOptions every(std::FILE* out, std::string text = {}) {
  return {.text = std::move(text), .out = out, .interval = 0ms};
}

}  // namespace

TEST_CASE("a line of progress: bar, count, speed, what is left", "[report]") {
  ProgressState const half{.text = "epoch 1", .done = 50, .total = 100, .seconds = 5, .note = "loss 0.5"};
  CHECK(half.line(79) == "epoch 1 50/100 [###############...............] 10.0/s 0:05 left  loss 0.5");
  CHECK(half.line(60) == "epoch 1 50/100 [########........] 10.0/s 0:05 left  loss 0.5");
  CHECK(half.line(47) == "epoch 1 50/100 10.0/s 0:05 left  loss 0.5");
  CHECK(half.line(9) == "epoch 1 5");
  CHECK(ProgressState{.done = 100, .total = 100, .seconds = 5000}.line(79) ==
        "100/100 [##############################] 50.0 s each 1:23:20");
  CHECK(ProgressState{.done = 7, .seconds = 2}.line(79) == "7 3.5/s 0:02");
  CHECK(ProgressState{.done = 30, .before = 20, .total = 40, .seconds = 2}.speed() ==
        "5.0/s 0:02 left");  // an epoch that goes on
  CHECK(ProgressState{.done = 0, .total = 4}.line(79) == "0/4 [..............................] ");
  CHECK(ProgressState{.done = 0, .total = 0}.line(30) == "0/0 [#######################] ");
  CHECK(ProgressState{.text = "\u00fcber", .done = 1, .total = 2}.line(3) == "\u00fcbe");
}

TEST_CASE("in a file there is a line every tenth of the way, without control characters", "[report]") {
  PlainFile file;
  {
    Progress progress(1000, {.text = "step", .out = file.out});
    int notes = 0;
    for (std::size_t done = 1; done <= 1000; ++done)
      if (progress.is_due(done)) progress.update(done, "note " + std::to_string(++notes));
    CHECK(notes == 10);
  }
  auto const lines = file.lines();
  REQUIRE(lines.size() == 10);
  CHECK_THAT(lines.front(), Matches(R"(step 100/1000 [0-9.]+/s 0:0\d left  note 1)"));
  CHECK_THAT(lines.back(), Matches(R"(step 1000/1000 [0-9.]+/s 0:0\d  note 10)"));
  for (char const letter : file.text()) CHECK((letter == '\n' || letter >= ' '));
}

TEST_CASE("in a file a loop of unknown length tells at intervals, and in the end", "[report]") {
  PlainFile file;
  {
    Progress progress(std::nullopt, {.out = file.out, .file_interval = 20ms});
    for (std::size_t done = 1; done <= 500; ++done) {
      if (done == 250) std::this_thread::sleep_for(25ms);
      progress.update(done);
    }
  }
  auto const lines = file.lines();
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], Matches(R"(250 [0-9.]+/s 0:00)"));
  CHECK_THAT(lines[1], Matches(R"(500 [0-9.]+/s 0:00)"));
}

TEST_CASE("on a terminal one line is rewritten, and stays whole in a narrow one", "[report]") {
  for (unsigned short const columns : {80, 24, 12}) {
    Terminal terminal(columns);
    {
      Progress progress(300, every(terminal.out, "training"));
      for (std::size_t done = 1; done <= 300; ++done) {
        progress.update(done, done < 150 ? "a note that makes the line longer" : "");
        if (done % 10 == 0) CHECK(terminal.rows().size() == 1);
      }
    }
    auto const rows = terminal.rows();
    REQUIRE(rows.size() == 2);
    CHECK(rows[0].starts_with(std::string("training 300/300").substr(0, columns - 1u)));
    CHECK(rows[0].size() < columns);
    CHECK(rows[0].find("note") == std::string::npos);
    CHECK(rows[1].empty());
  }
}

TEST_CASE("on a terminal there are at most so many lines a second", "[report]") {
  Terminal terminal;
  {
    Progress progress(1'000'000, {.out = terminal.out, .interval = 3600s});
    for (std::size_t done = 1; done <= 1'000'000; ++done) progress.update(done);
    terminal.rows();
  }
  terminal.rows();
  CHECK(std::count(terminal.raw.begin(), terminal.raw.end(), '0') < 100);  // the first line, the last, and the end
}

TEST_CASE("what is printed beside a bar stands on lines of its own, and the bar comes back", "[report]") {
  Terminal terminal;
  {
    Progress progress(10, every(terminal.out));
    progress.update(4);
    beside_bars([&] { std::fprintf(terminal.out, "saved\n"); });
    CHECK(terminal.rows().size() == 2);
    CHECK(terminal.rows()[0] == "saved");
    CHECK_THAT(terminal.rows()[1], Matches(R"(4/10 \[#+\.+\] .*left)"));
    progress.update(10);
  }
  beside_bars([&] { std::fprintf(terminal.out, "end\n"); });
  auto const rows = terminal.rows();
  REQUIRE(rows.size() == 4);
  CHECK(rows[0] == "saved");
  CHECK_THAT(rows[1], Matches(R"(10/10 \[#+\] .*)"));
  CHECK(rows[2] == "end");
}

TEST_CASE("bars inside of each other share the line", "[report]") {
  Terminal terminal;
  PlainFile file;
  for (auto* const out : {terminal.out, file.out}) {
    for ([[maybe_unused]] int epoch : progress(std::vector{1, 2}, every(out, "epoch"))) {
      for ([[maybe_unused]] int batch : progress(std::vector{1, 2, 3, 4}, every(out, "batch"))) {
        if (out == terminal.out) CHECK(terminal.rows().size() == 1);
        if (out == terminal.out && epoch == 2 && batch == 3)
          CHECK_THAT(terminal.rows()[0], Matches(R"(epoch 1/2 \| batch 2/4 \[#+\.+\] .*)"));
      }
    }
  }
  auto const rows = terminal.rows();
  REQUIRE(rows.size() == 2);
  CHECK_THAT(rows[0], Matches(R"(epoch 2/2 \[#+\] .*)"));
  auto const lines = file.lines();
  REQUIRE(lines.size() == 10);
  CHECK_THAT(lines[0], Matches(R"(epoch 0/2 \| batch 1/4 .*)"));
  CHECK_THAT(lines[9], Matches(R"(epoch 2/2 .*)"));
}

TEST_CASE("loops over any range: sized or not, by name or not, left early", "[report]") {
  PlainFile file;
  std::vector<std::unique_ptr<int>> movable_only(3);
  std::size_t seen = 0;
  for (auto& it : progress(movable_only, every(file.out))) {
    it = std::make_unique<int>(1);
    ++seen;
  }
  CHECK(seen == 3);
  CHECK(movable_only[2]);
  struct Stream {  // begins and ends with different types, and has no size
    struct Iterator {
      int left;
      int operator*() const { return left; }
      void operator++() { --left; }
      bool operator==(std::default_sentinel_t) const { return left == 0; }
    };
    Iterator begin() { return {5}; }
    std::default_sentinel_t end() { return {}; }
  };
  struct Told : Stream {  // says how long it is only if it knows
    std::optional<std::size_t> known;
    std::optional<std::size_t> length() const { return known; }
  } told;
  CHECK(progress(told, every(file.out)).bar().state().total == std::nullopt);
  told.known = 5;
  CHECK(progress(told, every(file.out)).bar().state().total == 5);
  int sum = 0;
  for (int const it : progress(Stream(), every(file.out, "stream"))) sum += it;
  CHECK(sum == 15);
  int const array[] = {1, 2};
  for (int const it : progress(array, every(file.out, "array"))) sum += it;
  CHECK(sum == 18);
  for (int const it : progress(std::list<int>(), every(file.out, "empty"))) sum += it;
  CHECK_THROWS_AS(
      [&] {
        for (int const it : progress(std::vector{1, 2, 3, 4}, every(file.out, "left")))
          if (it == 3) throw std::runtime_error("left");
      }(),
      std::runtime_error);
  std::vector<std::string> counts;
  for (auto const& line : file.lines())
    counts.push_back(line.substr(0, line.find_last_of('/') == line.npos ? line.npos
                                    : line.find("/s") == line.npos      ? line.npos
                                                                        : line.rfind(' ', line.find("/s"))));
  CHECK(counts ==
        std::vector<std::string>{"1/3", "2/3", "3/3", "stream 5", "array 1/2", "array 2/2", "left 1/4", "left 2/4"});
}

TEST_CASE("an invisible bar prints nothing, and nothing is in the way of others", "[report]") {
  Terminal terminal;
  {
    Progress progress(3, {.visible = false, .out = terminal.out, .interval = 0ms});
    CHECK_FALSE(progress.is_due(3));
    progress.update(3, "note");
    beside_bars([&] { std::fprintf(terminal.out, "printed\n"); });
  }
  CHECK(terminal.rows() == std::vector<std::string>{"printed", ""});
}

TEST_CASE("TERM=dumb is treated as a file", "[report]") {
  Terminal terminal;
  ::setenv("TERM", "dumb", 1);
  {
    Progress progress(2, every(terminal.out));
    progress.update(1);
    progress.update(2);
  }
  ::setenv("TERM", "xterm", 1);
  CHECK(terminal.rows().size() == 3);
}
