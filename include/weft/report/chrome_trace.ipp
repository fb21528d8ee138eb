// report/chrome_trace.ipp -- definitions of report/chrome_trace.hpp.
#pragma once

#include <weft/report/chrome_trace.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <weft/comm/values.hpp>
#include <weft/core/atomic_file.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/report/json.hpp>

namespace weft::inline v0::report::detail {

WEFT_INLINE std::size_t Rows::place(double begin_us, double end_us) {
  auto const row = std::find_if(ends_us_.begin(), ends_us_.end(), [begin_us](double end) { return end <= begin_us; });
  auto const index = static_cast<std::size_t>(row - ends_us_.begin());
  if (row == ends_us_.end())
    ends_us_.push_back(end_us);
  else
    *row = end_us;
  return index;
}

}  // namespace weft::report::detail

namespace weft::inline v0::report {

WEFT_INLINE std::string trace_events(int rank, std::string_view where, std::vector<comm::Event> const& collectives,
                                     double collectives_began_us, std::vector<Span> const& spans, double shift_us) {
  std::string json;
  auto const add = [&json, rank](std::string const& fields) {
    json += (json.empty() ? "" : ",\n") + ("{\"pid\":" + std::to_string(rank) + "," + fields + "}");
  };
  auto const name_of_row = [&add](std::size_t row, std::string const& name) {
    add("\"ph\":\"M\",\"tid\":" + std::to_string(row) +
        ",\"name\":\"thread_name\",\"args\":{\"name\":" + json_text(name) + "}");
    add("\"ph\":\"M\",\"tid\":" + std::to_string(row) +
        ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":" + std::to_string(row) + "}");
  };
  add("\"ph\":\"M\",\"name\":\"process_name\",\"args\":{\"name\":" +
      json_text("rank " + std::to_string(rank) + (where.empty() ? "" : ", " + std::string(where))) + "}");
  add("\"ph\":\"M\",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":" + std::to_string(rank) + "}");

  auto sorted = spans;
  std::stable_sort(sorted.begin(), sorted.end(), [](Span const& a, Span const& b) { return a.begin < b.begin; });
  detail::Rows span_rows;
  for (auto const& span : sorted) {
    auto const begin = detail::micros(span.begin) + shift_us, end = detail::micros(span.end) + shift_us;
    add("\"ph\":\"X\",\"tid\":" + std::to_string(span_rows.place(begin, end)) + ",\"name\":" + json_text(span.name) +
        ",\"cat\":\"span\",\"ts\":" + detail::json_micros(begin) + ",\"dur\":" + detail::json_micros(end - begin));
  }
  for (std::size_t row = 0; row < span_rows.size(); ++row)
    name_of_row(row, row == 0 ? "steps" : "steps (" + std::to_string(row + 1) + ")");

  detail::Rows rows;
  auto const first_row = span_rows.size();
  for (auto const& event : collectives) {
    double const begin = collectives_began_us + event.issued_us + shift_us;
    bool const ends = event.done_us >= event.issued_us;
    double const end = ends ? collectives_began_us + event.done_us + shift_us : begin;
    add((ends ? "\"ph\":\"X\",\"dur\":" + detail::json_micros(end - begin) : std::string("\"ph\":\"i\",\"s\":\"t\"")) +
        ",\"tid\":" + std::to_string(first_row + rows.place(begin, end)) +
        ",\"name\":" + json_text(comm::name_of(event.kind)) + ",\"cat\":" + json_text(event.phase) +
        ",\"ts\":" + detail::json_micros(begin) + ",\"args\":{\"phase\":" + json_text(event.phase) +
        ",\"bytes\":" + std::to_string(event.bytes) + ",\"group_size\":" + std::to_string(event.group_size) +
        ",\"axis\":" + json_text(event.axis) + "}");
  }
  for (std::size_t row = 0; row < rows.size(); ++row)
    name_of_row(first_row + row, row == 0 ? "collectives" : "collectives (" + std::to_string(row + 1) + ")");
  return json;
}

WEFT_INLINE std::string trace_file(std::vector<std::string> const& ranks,
                                   std::vector<std::pair<std::string, std::string>> const& about) {
  std::string json = "{\"displayTimeUnit\":\"ms\",\"otherData\":{";
  for (auto const& [key, value] : about)
    json += (&key == &about.front().first ? "" : ",") + json_text(key) + ":" + value;
  json += "},\"traceEvents\":[\n";
  for (auto const& events : ranks) json += (&events == ranks.data() ? "" : ",\n") + events;
  return json + "\n]}\n";
}

WEFT_INLINE ClockOffset clock_offset(comm::Communicator& group) {
  constexpr int rounds = 8;
  auto const message = [&group](std::int64_t value) {
    return at::full({1}, value, at::TensorOptions(at::kLong).device(group.device()));
  };
  auto const now_ns = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(detail::Clock::now().time_since_epoch()).count();
  };
  ClockOffset best{.error_us = std::numeric_limits<double>::infinity()};
  if (group.rank() == 0) best = {};
  for (int other = 1; other < group.size(); ++other) {
    if (group.rank() != 0 && group.rank() != other) continue;
    auto const received = message(0);
    for (int round = 0; round < rounds; ++round) {
      if (group.rank() == 0) {
        group.receive_into(received, other);
        static_cast<void>(received.item<std::int64_t>());  // on CUDA: it is there
        group.send(message(now_ns()), other);
      } else {
        auto const asked = now_ns();
        group.send(message(asked), 0);
        group.receive_into(received, 0);
        auto const there = received.item<std::int64_t>();
        auto const answered = now_ns();
        double const error_us = static_cast<double>(answered - asked) / 2e3;
        if (error_us < best.error_us) best = {static_cast<double>(there - asked) / 1e3 - error_us, error_us};
      }
    }
  }
  return best;
}

WEFT_INLINE void save_trace(std::filesystem::path const& path, comm::Session const& session,
                            std::vector<comm::Event> const& collectives, std::vector<Span> const& spans) {
  auto const& ranks = session.ranks;
  bool const together = session.world && !session.alone;
  auto const offset = together && ranks.num_nodes > 1 ? clock_offset(*session.world) : ClockOffset();
  // Times count from the first that any rank has: viewers want none below 0.
  double const began_us = detail::micros(session.recorder->began());
  auto first_ns = std::numeric_limits<std::int64_t>::max();
  auto const begins = [&](double local_us) {
    first_ns = std::min(first_ns, static_cast<std::int64_t>((local_us + offset.offset_us) * 1e3));
  };
  if (!collectives.empty()) begins(began_us);
  for (auto const& span : spans) begins(detail::micros(span.begin));
  if (together) {
    auto const first_of_all = comm::tensor_of(first_ns, session.world->device());
    session.world->all_reduce(first_of_all, ReduceOp::min);
    first_ns = comm::number_of<std::int64_t>(first_of_all);
  }
  double const shift_us = offset.offset_us - static_cast<double>(first_ns) / 1e3;
  auto const where = ranks.num_nodes > 1 ? "node " + std::to_string(ranks.node_rank) : std::string();
  std::vector<std::string> all{trace_events(ranks.global_rank, where, collectives, began_us, spans, shift_us)};
  std::vector<std::string> offsets{"{\"rank\":" + std::to_string(ranks.global_rank) +
                                   ",\"added_us\":" + detail::json_micros(offset.offset_us) +
                                   ",\"error_us\":" + detail::json_micros(offset.error_us) + "}"};
  std::string error;
  if (together) {
    all = comm::gather_bytes(*session.world, all.front());
    offsets = comm::gather_bytes(*session.world, offsets.front());
  }
  if (ranks.global_rank == 0 || session.alone) try {
      std::string list;
      for (auto const& one : offsets) list += (list.empty() ? "" : ",") + one;
      auto const text = trace_file(
          all, {{"clocks", json_text(ranks.num_nodes > 1 ? "of several nodes, put in rank 0's by messages"
                                                         : "of one node: the same for all ranks")},
                {"clock_offsets", "[" + list + "]"}});
      core::AtomicFile file(path);
      file.write(text.data(), text.size());
      file.commit();
    } catch (std::exception const& failure) {
      error = failure.what();
    }
  if (together) error = comm::broadcast_bytes(*session.world, error, 0);  // nobody goes on before the file is there
  if (!error.empty()) fail(error);
}

}  // namespace weft::report
