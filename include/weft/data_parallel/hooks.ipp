// data_parallel/hooks.ipp -- definitions of data_parallel/hooks.hpp.
#pragma once

#include <weft/data_parallel/hooks.hpp>

#include <ATen/ATen.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::data_parallel {

WEFT_INLINE Future completed(at::Tensor value) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  future->markCompleted(c10::IValue(std::move(value)));
  return future;
}

WEFT_INLINE Future Widen::operator()(c10d::GradBucket& bucket, comm::Communicator& ranks) const {
  auto buffer = bucket.getBufferRef();
  auto wide = buffer.to(at::promote_types(dtype, buffer.scalar_type()));
  wide.div_(ranks.size());
  std::vector<at::Tensor> list{wide};
  auto work = ranks.backend()->allreduce(list, c10d::AllreduceOptions());
  return work->getFuture()->then(
      [buffer, wide](c10::ivalue::Future& done) {
        if (done.hasError()) std::rethrow_exception(done.exception_ptr());
        buffer.copy_(wide);
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

WEFT_INLINE std::unique_ptr<c10d::CommHookInterface> hook_of(PrecisionConfig const& config,
                                                             std::shared_ptr<comm::Communicator> const& ranks) {
  auto const stored = precision::dtype_of(config.stored), reduced = precision::dtype_of(config.reduced);
  if (stored == reduced) return nullptr;
  if (reduced == at::kBFloat16)
    return std::make_unique<HookAdapter<Compress<at::kBFloat16>>>(std::make_shared<Compress<at::kBFloat16>>(), ranks);
  if (reduced == at::kHalf)
    return std::make_unique<HookAdapter<Compress<at::kHalf>>>(std::make_shared<Compress<at::kHalf>>(), ranks);
  return std::make_unique<HookAdapter<Widen>>(std::make_shared<Widen>(reduced), ranks);
}

}  // namespace weft::data_parallel
