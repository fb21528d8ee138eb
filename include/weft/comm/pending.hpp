// comm/pending.hpp -- a collective under way.
// In: what a backend calls its work. Out: a wait that ends with the result, or with an error that names the call.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace weft::inline v0::comm {

/// A collective under way. It keeps its tensors until the work is done; wait() throws what the backend threw, with the
/// call's name and rank, and throws it again when it is asked again. Dropped without wait(), it waits and swallows the
/// error; dropped by an exception it does not wait, since the other ranks may never come (the backend keeps the tensors
/// it works on).
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  /// wait() waits for `limit` at most; 0: as long as the backend's own timeout.
  Pending(c10::intrusive_ptr<c10d::Work> work, std::string what, std::vector<at::Tensor> tensors,
          std::function<void()> finish = nullptr, std::chrono::milliseconds limit = {});
  Pending(Pending&& other) noexcept;
  Pending& operator=(Pending&& other) noexcept;
  ~Pending() { abandon(); }

  void wait();

  /// LibTorch appends its C++ stack to messages; the reason is the first line.
  static std::string first_line(std::string const& text) { return text.substr(0, text.find('\n')); }

 private:
  void abandon() noexcept {
    if (!work_ || std::uncaught_exceptions() > 0) return;
    try {
      wait();
    } catch (...) {
    }
  }

  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  std::function<void()> finish_;
  std::chrono::milliseconds limit_{};
  std::string error_;
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/pending.ipp>
#endif
