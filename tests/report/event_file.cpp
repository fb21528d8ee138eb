#include <weft/report/event_file.hpp>
#include <weft/report/json.hpp>
#include <weft/report/log_file.hpp>

#include <catch2/catch_all.hpp>

#include <fstream>
#include <iterator>
#include <limits>
#include <string>

using namespace weft::report;

// RFC 3720, B.4, and the check value of every table of CRCs.
static_assert(crc32c("123456789") == 0xe3069283);

TEST_CASE("CRC-32C has the published values", "[report]") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  std::string up;
  for (char byte = 0; byte < 32; ++byte) up += byte;
  CHECK(crc32c(up) == 0x46dd794e);
  CHECK(crc32c(std::string(up.rbegin(), up.rend())) == 0x113fdb5c);
}

TEST_CASE("integers of a message are varints, negative ones of ten bytes, and 0 is left out", "[report]") {
  CHECK(Message().integer(2, 0).bytes().empty());
  CHECK(Message().integer(2, 127).bytes() == "\x10\x7f");
  CHECK(Message().integer(2, 300).bytes() == "\x10\xac\x02");
  CHECK(Message().integer(2, -1).bytes() == "\x10" + std::string(9, '\xff') + "\x01");
  CHECK(Message().integer(16, 1).bytes() == "\x80\x01\x01");
  CHECK(Message().boolean(4, false).bytes() == std::string("\x20\0", 2));
}

// Made by `tests/programs/tensorboard_events.py golden`: TensorBoard's protos and its record writer.
TEST_CASE("event files are to the byte those that TensorBoard's own code writes", "[report]") {
  auto const record = [](Message const& message) { return tf_record(message.bytes()); };
  std::string written = record(event::file_version(1700000000.25));
  Message scalars, text, settings, start, infinite;
  event::add_scalar(scalars, "acc", -1.25);
  event::add_scalar(scalars, "loss", 0.1);
  written += record(event::of_summary(1700000001.5, 3, scalars));
  event::add_text(text, "note", "h\u00e9llo");
  written += record(event::of_summary(1700000002.0, 300, text));
  settings.message(1, Message().text(1, "layers").message(2, Message().real(2, 3)));
  settings.message(1, Message().text(1, "lr").message(2, Message().real(2, 0.5)));
  settings.message(1, Message().text(1, "name").message(2, Message().text(3, "a")));
  settings.message(1, Message().text(1, "shuffle").message(2, Message().boolean(4, false)));
  event::add_session_start(start, settings.real(5, 12.5));
  written += record(event::of_summary(1700000003.0, 0, start));
  event::add_scalar(infinite, "none", std::numeric_limits<double>::infinity());
  written += record(event::of_summary(1700000004.0, -1, infinite));

  std::ifstream file(WEFT_TEST_DATA "/formats/events.tfevents", std::ios::binary);
  std::string const golden{std::istreambuf_iterator<char>(file), {}};
  REQUIRE_FALSE(golden.empty());
  CHECK(written.size() == golden.size());
  CHECK((written == golden));
}

TEST_CASE("numbers as text read back as the same number, and JSON stays JSON", "[report]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(shortest(0.1) == "0.1");
  CHECK(shortest(1e5) == "100000");
  CHECK(shortest(-3) == "-3");
  CHECK(shortest(0) == "0");
  CHECK(shortest(-0.0) == "-0");
  CHECK(shortest(1e15) == "1e+15");
  CHECK(shortest(1e-30) == "1e-30");
  CHECK(shortest(static_cast<double>(0.1f)) == "0.10000000149011612");
  CHECK(shortest(-std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(json_number(-infinity) == "\"-inf\"");
  CHECK(json_text("a\"\\\n\x01\u00fc") == "\"a\\\"\\\\\\u000a\\u0001\u00fc\"");
}

TEST_CASE("a log that cannot be written says so", "[report]") {
  LogFile full("/dev/full", 0, 2);
  full.append("a");
  CHECK_THROWS_WITH(full.append("b"), "weft: cannot write /dev/full: No space left on device");
  CHECK_THROWS_WITH(full.flush(),
                    "weft: cannot write /dev/full: No space left on device");  // what waits is not forgotten
  CHECK_THROWS_AS(LogFile("/dev/null/file", 0, 1), weft::Error);
}
