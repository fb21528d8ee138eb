// fabric/callbacks.hpp -- objects that are told what happens.
// In: objects with any of the functions on(Event const&). Out: calls of those that have one, and a compile error where
// nobody has.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <weft/model/parameter_table.hpp>

namespace weft::inline v0 {

/// setup has made a model, and the optimizers that it was asked for.
struct AfterSetup {
  torch::nn::Module& module;
  model::ParameterTable const& table;
};
/// An optimizer that setup or setup_optimizers made has stepped.
struct AfterOptimizerStep {
  torch::optim::Optimizer& optimizer;
};

namespace fabric {

/// Who hears of what the facade does itself.
struct Listener {
  virtual void after_setup(AfterSetup const&) = 0;
  virtual void after_step(AfterOptimizerStep const&) = 0;

 protected:
  ~Listener() = default;
};

/// Shared by a Fabric, its callbacks and its optimizers, any of which may go first.
struct Listeners {
  std::vector<Listener*> all;

  void add(Listener* listener) { all.push_back(listener); }
  void remove(Listener* listener) { std::erase(all, listener); }
  template <class Event>
  void notify(void (Listener::*about)(Event const&), Event const& event) const {
    for (auto* const listener : std::vector(all))  // a copy: a callback may begin others, or end them
      if (std::find(all.begin(), all.end(), listener) != all.end()) (listener->*about)(event);
  }
};

template <class Object, class Event, class Run>
concept HandlesWithFabric = requires(Object& object, Event const& event, Run& fabric) { object.on(event, fabric); };
template <class Object, class Event, class Run>
concept Handles = HandlesWithFabric<Object, Event, Run> ||
                  requires(Object& object, Event const& event) { object.on(event); };

// A name that two bases have is ambiguous: so &Both<Object>::on is a mistake just where Object has an on, overloaded,
// template or not.
struct HasOn {
  void on();
};
template <class Object>
struct Both : Object, HasOn {};
template <class Object>
concept HandlesNothing = !std::is_class_v<Object> || (!std::is_final_v<Object> && requires { &Both<Object>::on; });

}  // namespace fabric

/// Objects that hear of events. An event is a struct: its name says what happened, its members are what a hook would be
/// passed. An object that wants to hear of it has a function on(Event const&), or on(Event const&, auto& fabric).
/// Whatever it throws reaches the caller.
///
///   struct EpochEnd { int epoch; double loss; };
///   struct Printer {
///     void on(EpochEnd const& it) { ... }
///     void on(weft::AfterOptimizerStep const&) { ++steps; }
///     int steps = 0;
///   };
///   Printer printer;
///   auto callbacks = fabric.callbacks(printer, Stopper{.patience = 3});  // borrowed if they have a name, else moved
///   in callbacks.call(EpochEnd{.epoch = 1, .loss = 0.5});
///
/// Names are types, so that a misspelt one does not compile, at either end; neither does an event that nobody handles.
template <class Run, class... Objects>
class [[nodiscard]] Callbacks final : private fabric::Listener {
 public:
  /// Whether one of them handles an Event.
  template <class Event>
  static constexpr bool hear = (fabric::Handles<std::remove_reference_t<Objects>, Event, Run> || ...);

  /// Made by Fabric::callbacks.
  Callbacks(Run& run, std::shared_ptr<fabric::Listeners> listeners, Objects&&... objects)
      : run_(run), objects_(std::forward<Objects>(objects)...), listeners_(std::move(listeners)) {
    static_assert(!(fabric::HandlesNothing<std::remove_reference_t<Objects>> || ...),
                  "weft: callbacks: an object without any function on(Event const&) never hears of anything");
    listeners_->add(this);
  }
  ~Callbacks() { listeners_->remove(this); }
  Callbacks(Callbacks const&) = delete;
  Callbacks& operator=(Callbacks const&) = delete;

  /// Tells those that hear of it, in the order in which they were given.
  template <class Event>
  void call(Event const& event) {
    static_assert(hear<Event>,
                  "weft: call: none of these callbacks has on(Event const&) for this event; give one to a callback, or "
                  "ask `if constexpr (callbacks.hear<Event>)` before");
    notify(event);
  }

  /// The object of this type.
  template <class Object>
  Object& get() {
    constexpr bool has = (std::is_same_v<std::remove_reference_t<Objects>, Object> || ...);
    static_assert(has, "weft: get<Object>(): no callback is of this type");
    if constexpr (has) return get<Object, 0>();
  }

 private:
  template <class Object, std::size_t I>
  Object& get() {
    if constexpr (std::is_same_v<std::remove_reference_t<std::tuple_element_t<I, std::tuple<Objects...>>>, Object>)
      return std::get<I>(objects_);
    else
      return get<Object, I + 1>();
  }
  template <class Event>
  void notify(Event const& event) {
    std::apply([&](auto&... objects) { (report_one(objects, event), ...); }, objects_);
  }
  template <class Object, class Event>
  void report_one(Object& object, Event const& event) {
    if constexpr (fabric::HandlesWithFabric<Object, Event, Run>)
      object.on(event, run_);
    else if constexpr (fabric::Handles<Object, Event, Run>)
      object.on(event);
  }
  void after_setup(AfterSetup const& event) override { notify(event); }
  void after_step(AfterOptimizerStep const& event) override { notify(event); }

  Run& run_;
  std::tuple<Objects...> objects_;
  std::shared_ptr<fabric::Listeners> listeners_;
};

namespace fabric {

template <class Derived>
class Optimizing;

/// The part of Fabric that tells callbacks.
template <class Derived>
class Announcements {
 public:
  /// Objects that hear of the Fabric's own events until the end of the scope, and of the program's.
  template <class... Objects>
  Callbacks<Derived, Objects...> callbacks(Objects&&... objects) {
    return {static_cast<Derived&>(*this), listeners_, std::forward<Objects>(objects)...};
  }

 private:
  friend Derived;
  friend Optimizing<Derived>;
  Announcements() = default;
  ~Announcements() { listeners_->all.clear(); }  // optimizers may step on; there is no fabric to tell of it

  std::shared_ptr<Listeners> listeners_ = std::make_shared<Listeners>();
};

}  // namespace fabric
}  // namespace weft
