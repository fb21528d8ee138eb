// report/event_file.ipp -- definitions of report/event_file.hpp.
#pragma once

#include <weft/report/event_file.hpp>

#include <weft/core/build.hpp>

namespace weft::inline v0::report::event {

WEFT_INLINE Message summary_metadata(std::string_view plugin_name, std::string_view content) {
  Message plugin_data;
  plugin_data.text(1, plugin_name);
  if (!content.empty()) plugin_data.text(2, content);
  return Message().message(1, plugin_data);
}

WEFT_INLINE void add_text(Message& summary, std::string_view tag, std::string_view text) {
  constexpr int dt_string = 7;
  auto const shape = Message().message(2, Message().integer(1, 1));
  auto const tensor = Message().integer(1, dt_string).message(2, shape).text(8, text);
  summary.message(1, Message().text(1, tag).message(8, tensor).message(9, summary_metadata("text")));
}

WEFT_INLINE void add_session_start(Message& summary, Message const& settings) {
  constexpr int dt_float = 1;
  auto const empty = Message().integer(1, dt_float).message(2, Message().message(2, Message()));
  auto const plugin_data = Message().message(3, settings);
  summary.message(1, Message()
                         .text(1, "_hparams_/session_start_info")
                         .message(8, empty)
                         .message(9, summary_metadata("hparams", plugin_data.bytes())));
}

}  // namespace weft::report::event
