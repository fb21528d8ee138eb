// model/steps.hpp -- the steps that Lightning names.
// In: a model that can enter its module. Out: calls of the module's methods of these names, each as the model's
// forward.
#pragma once

#include <utility>

namespace weft::inline v0::model {

/// The class of a model that is complete by the time that one of its steps is called with these arguments.
template <class Derived, class...>
struct ModuleOf {
  using type = typename Derived::Impl;
};

/// Where the module has them: model.training_step(batch) is model.call<&M::training_step>(batch), and so on.
template <class Derived>
class NamedSteps {
 public:
  template <class... A>
    requires requires(typename ModuleOf<Derived, A...>::type& module, A&&... arguments) {
      module.training_step(std::forward<A>(arguments)...);
    }
  auto training_step(A&&... arguments) {
    return model().enter(
        [](auto& module, auto&&... as) -> decltype(auto) {
          return module.training_step(std::forward<decltype(as)>(as)...);
        },
        std::forward<A>(arguments)...);
  }
  template <class... A>
    requires requires(typename ModuleOf<Derived, A...>::type& module, A&&... arguments) {
      module.validation_step(std::forward<A>(arguments)...);
    }
  auto validation_step(A&&... arguments) {
    return model().enter(
        [](auto& module, auto&&... as) -> decltype(auto) {
          return module.validation_step(std::forward<decltype(as)>(as)...);
        },
        std::forward<A>(arguments)...);
  }
  template <class... A>
    requires requires(typename ModuleOf<Derived, A...>::type& module, A&&... arguments) {
      module.test_step(std::forward<A>(arguments)...);
    }
  auto test_step(A&&... arguments) {
    return model().enter(
        [](auto& module, auto&&... as) -> decltype(auto) {
          return module.test_step(std::forward<decltype(as)>(as)...);
        },
        std::forward<A>(arguments)...);
  }
  template <class... A>
    requires requires(typename ModuleOf<Derived, A...>::type& module, A&&... arguments) {
      module.predict_step(std::forward<A>(arguments)...);
    }
  auto predict_step(A&&... arguments) {
    return model().enter(
        [](auto& module, auto&&... as) -> decltype(auto) {
          return module.predict_step(std::forward<decltype(as)>(as)...);
        },
        std::forward<A>(arguments)...);
  }

 private:
  friend Derived;
  NamedSteps() = default;
  Derived& model() { return static_cast<Derived&>(*this); }
};

}  // namespace weft::model
