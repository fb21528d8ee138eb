// launch/run.ipp -- definitions of launch/run.hpp.
#pragma once

#include <weft/launch/run.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <weft/core/build.hpp>

namespace weft::inline v0::launch {

/// "0-3, 6": of ascending numbers.
inline std::string ranges(std::vector<int> const& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    auto last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

WEFT_INLINE std::vector<std::string> said_once(std::vector<Failure> const& failures) {
  struct Sentence {
    std::string text;  // with a sign where the rank's number is
    std::vector<int> ranks;
    std::string first;  // as the first of them says it
  };
  std::vector<Sentence> sentences;
  for (auto const& failure : failures) {
    auto const number = "rank " + std::to_string(failure.rank);
    std::string same = failure.message;
    for (auto at = same.find(number); failure.rank >= 0 && at != same.npos; at = same.find(number, at + 1))
      if (auto const end = at + number.size(); end == same.size() || same[end] < '0' || same[end] > '9')
        same.replace(at, number.size(), "rank \1");
    auto const known = std::find_if(sentences.begin(), sentences.end(),
                                    [&](Sentence const& other) { return other.text == same; });
    if (known == sentences.end())
      sentences.push_back({same, {failure.rank}, failure.message});
    else
      known->ranks.push_back(failure.rank);
  }
  std::vector<std::string> said;
  for (auto& sentence : sentences) {
    std::sort(sentence.ranks.begin(), sentence.ranks.end());
    auto text = sentence.first;
    if (sentence.ranks.size() > 1)
      if (auto const at = sentence.text.find("rank \1"); at != text.npos)
        text.replace(at, text.find_first_not_of("0123456789", at + 5) - at, "ranks " + ranges(sentence.ranks));
    said.push_back(std::move(text));
  }
  return said;
}

WEFT_INLINE std::vector<Failure> run_here(std::function<std::shared_ptr<comm::Session>()> const& make,
                                          RankBody const& body) {
  struct Inside {
    Inside() { inside_launched_function() = true; }
    ~Inside() { inside_launched_function() = false; }
  } const inside;
  int rank = -1;  // until there is a session: a process that can't join may not know which one it is, and its message
                  // says what it knows
  auto const failed = [&rank](std::string const& message) {
    std::vector<Failure> failures{
        {rank, rank < 0 ? message : core::message("weft: rank ", rank, " failed: ", message), 1}};
    report(failures);
    return failures;
  };
  try {
    auto session = make();
    rank = session->ranks.global_rank;
    body(std::move(session));
    return {};
  } catch (...) {
    return failed(Processes::report_of_exception().text);
  }
}

}  // namespace weft::launch

namespace weft::inline v0::launch::detail {

WEFT_INLINE std::shared_ptr<comm::Session> started_session(Machine const& machine, LaunchOptions const& options,
                                                           comm::RankInfo const& ranks, std::uint16_t port,
                                                           int attempt) {
  auto session = joined_session(machine, options, ranks, machine.accelerators(),
                                join_store("127.0.0.1", port, options.collective_timeout), "127.0.0.1");
  session->attempt = attempt;
  return session;
}

}  // namespace weft::launch::detail

namespace weft::inline v0::launch {

WEFT_INLINE Processes::Result run_forked(Machine const& machine, LaunchOptions const& options, RankBody const& body) {
  return detail::run_ranks(
      "Fork", machine, options, [&](Processes& processes, comm::RankInfo& ranks, ListeningSocket& socket, int attempt) {
        c10::intrusive_ptr<c10d::Store> served;
        return processes.run(
            [&](int rank) {
              socket.close();
              ranks.global_rank = ranks.local_rank = rank;
              return body(detail::started_session(machine, options, ranks, socket.port(), attempt));
            },
            [&] { served = socket.serve(); });
      });
}

WEFT_INLINE Processes::Result run_popen(Machine const& machine, LaunchOptions const& options) {
  return detail::run_ranks("Popen", machine, options,
                           [&](Processes& processes, comm::RankInfo& ranks, ListeningSocket& socket, int attempt) {
                             static bool launched = false;
                             if (attempt == 0 && std::exchange(launched, true))
                               fail<LaunchError>(
                                   "weft: Popen: this program has launched already, and ranks, as new runs of it, "
                                   "would run that first launch again; launch once, or write the launcher Fork");
                             // Served before ranks exist: nothing is forked here, so threads do no harm.
                             auto const port = socket.port();
                             auto const served = socket.serve();
                             return processes.run_commands(
                                 [&](int rank, int report) {
                                   return run_again({rank, ranks.world_size, port, report, ::getpid(), attempt});
                                 },
                                 [] {});
                           });
}

WEFT_INLINE std::shared_ptr<comm::Session> popen_session(Machine const& machine, LaunchOptions const& options,
                                                         PopenRank const& rank) {
  comm::RankInfo ranks;
  ranks.global_rank = ranks.local_rank = rank.rank;
  ranks.world_size = ranks.local_world_size = rank.world_size;
  if (int const wanted = options.devices.count(machine.accelerators()); wanted != rank.world_size)
    fail<LaunchError>("weft: Popen: the first run of this program asked for ", rank.world_size,
                      " ranks, this one for devices = ", options.devices.text(), "; let both ask alike");
  return detail::started_session(machine, options, ranks, rank.port, rank.attempt);
}

}  // namespace weft::launch
