// tests/unit/units.hpp -- units to test with.
// In: nothing. Out: a few modules and a hook that writes down where it was.
#pragma once

#include "test.hpp"

#include <weft/nn/linear.hpp>
#include <weft/unit/activity.hpp>
#include <weft/unit/unit.hpp>

namespace weft::test {

struct RecordingHooks : unit::Hooks {
  explicit RecordingHooks(std::vector<std::string>& log, std::string prefix = "", Needs wanted = {})
      : events(log), tag(std::move(prefix)), wants(wanted) {}

  Needs needs() const override { return wants; }
  void pre_forward(unit::Site const& site, unit::Tensors const& inputs) override {
    note("enter", site);
    num_inputs = inputs.size();
    if (on_enter) on_enter(inputs);
  }
  void post_forward(unit::Site const& site, unit::Tensors const& outputs) override {
    note("leave", site);
    num_outputs = outputs.size();
    if (on_leave) on_leave(outputs);
  }
  void abandon_forward(unit::Site const& site) noexcept override { note("abandon", site); }
  void pre_backward(unit::Site const& site) override { note("pre_backward", site); }
  void post_backward(unit::Site const& site) override { note("post_backward", site); }

  void note(char const* what, unit::Site const& site) {
    events.push_back(tag + what + (site.path.empty() ? "" : " " + site.path));
  }

  std::vector<std::string>& events;
  std::string tag;
  Needs wants;
  std::size_t num_inputs = 0, num_outputs = 0;
  std::function<void(unit::Tensors const&)> on_enter, on_leave;
};

using Events = std::vector<std::string>;

// How often a unit was entered.
struct Count {
  template <class Holder>
  explicit Count(Holder& holder) : hooks(std::make_shared<RecordingHooks>(events)) {
    holder->unit_attach(hooks);
  }
  int operator()() const {
    return static_cast<int>(std::count_if(events.begin(), events.end(), [](auto const& event) {
      return event == "enter" || event.starts_with("enter ");
    }));
  }
  Events events;
  std::shared_ptr<RecordingHooks> hooks;
};

}  // namespace weft::test
