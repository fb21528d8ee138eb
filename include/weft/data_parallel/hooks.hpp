// data_parallel/hooks.hpp -- what travels between ranks instead of the plain gradient.
// In: a bucket of gradients. Out: the averaged bucket; the user's own hook is any type with the same call.
//
//   struct Halve {                                            // CommHook<Halve>
//     at::Tensor operator()(c10d::GradBucket& bucket, weft::comm::Communicator& ranks) {
//       auto sum = bucket.getBuffer();                        // this rank's gradients, not yet divided
//       ranks.all_reduce(sum, weft::ReduceOp::average);
//       return sum;                                           // same number of elements; or a c10::ivalue::Future of
//       it
//     }
//   };
#pragma once

#include <concepts>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <weft/comm/communicator.hpp>
#include <weft/core/error.hpp>
#include <weft/fwd.hpp>
#include <weft/precision/rules.hpp>
#include <weft/strategy/precision.hpp>

namespace weft::inline v0::data_parallel {

using Future = c10::intrusive_ptr<c10::ivalue::Future>;

template <class Hook>
concept BlockingHook = requires(Hook& hook, c10d::GradBucket& bucket, comm::Communicator& ranks) {
  { hook(bucket, ranks) } -> std::same_as<at::Tensor>;
};
template <class Hook>
concept FutureHook = requires(Hook& hook, c10d::GradBucket& bucket, comm::Communicator& ranks) {
  { hook(bucket, ranks) } -> std::convertible_to<Future>;
};

Future completed(at::Tensor value);

/// A hook as c10d::Reducer wants it.
template <class Hook>
class HookAdapter final : public c10d::CommHookInterface {
 public:
  HookAdapter(std::shared_ptr<Hook> hook, std::shared_ptr<comm::Communicator> ranks)
      : hook_(std::move(hook)), ranks_(std::move(ranks)) {}

  Future runHook(c10d::GradBucket& bucket) override {
    if constexpr (BlockingHook<Hook>) {
      auto const expected = bucket.getBufferRef().numel();
      auto result = (*hook_)(bucket, *ranks_);
      if (!result.defined() || result.numel() != expected)
        fail<Error>("weft: CommHook, rank ", ranks_->rank(), ": the hook returned ",
                    result.defined() ? result.numel() : 0, " elements for bucket ", bucket.getIndex(), ", expected ",
                    expected, "; return the averaged bucket, all of it");
      return completed(std::move(result));
    } else {
      return (*hook_)(bucket, *ranks_);
    }
  }
  at::Tensor parseHookResult(c10::IValue const& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  std::shared_ptr<Hook> hook_;
  std::shared_ptr<comm::Communicator> ranks_;
};

/// Averages the bucket in a narrower floating dtype: half of the bytes for fp32 gradients. The division is split, see
/// comm::divisor_before_sum; the rest after the sum is in the gradients' own dtype.
template <at::ScalarType Narrow>
struct Compress {
  Future operator()(c10d::GradBucket& bucket, comm::Communicator& ranks) const {
    double const before = comm::divisor_before_sum(ranks.size());
    double const after = ranks.size() / before;
    auto buffer = bucket.getBufferRef();
    auto narrow = buffer.div_(before).to(Narrow);
    std::vector<at::Tensor> list{narrow};
    auto work = ranks.backend()->allreduce(list, c10d::AllreduceOptions());
    return work->getFuture()->then(
        [buffer, narrow, after](c10::ivalue::Future& done) {
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
          buffer.copy_(narrow);
          buffer.div_(after);
          return c10::IValue(buffer);
        },
        c10::TensorType::get());
  }
};

/// Averages the bucket in a wider floating dtype, as precisions of bf16 and fp16 do: the sum of many ranks would lose
/// what a gradient has no bits for. A bucket that is wider yet, of parameters that a precision's own Rules keep so,
/// stays as it is.
struct Widen {
  explicit Widen(at::ScalarType wide) : dtype(wide) {}

  Future operator()(c10d::GradBucket& bucket, comm::Communicator& ranks) const;

  at::ScalarType dtype;
};

/// The functor behind a hook policy: the policy itself unless it is one of weft's tags.
template <class Policy>
struct HookOf {
  using type = Policy;
};
template <>
struct HookOf<Bf16Compress> {
  using type = Compress<at::kBFloat16>;
};
template <>
struct HookOf<Fp16Compress> {
  using type = Compress<at::kHalf>;
};

/// What reduces gradients in the config's dtype, where they have another. Null: c10d's own average.
std::unique_ptr<c10d::CommHookInterface> hook_of(PrecisionConfig const& config,
                                                 std::shared_ptr<comm::Communicator> const& ranks);

}  // namespace weft::data_parallel

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data_parallel/hooks.ipp>
#endif
