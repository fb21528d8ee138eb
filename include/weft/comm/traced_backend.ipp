// comm/traced_backend.ipp -- definitions of comm/traced_backend.hpp.
#pragma once

#include <weft/comm/traced_backend.hpp>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE TracedBackend::TracedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Recorder> recorder,
                                         std::string axis, std::optional<CallCheck> check)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      recorder_(std::move(recorder)),
      axis_(std::move(axis)),
      check_(std::move(check)) {}

WEFT_INLINE auto TracedBackend::Noted::follow(Work work) const -> Work {
  if (!place || !work) return work;
  try {
    if (auto const future = work->getFuture())
      future->addCallback([recorder = recorder, place = place](c10::ivalue::Future&) { recorder->done(place); });
  } catch (c10::Error const&) {  // a Work without a future: when it was done stays unknown
  }
  return work;
}

WEFT_INLINE char const* TracedBackend::op_name(c10d::ReduceOp const& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return " by sum";
    case c10d::ReduceOp::AVG:
      return " by average";
    case c10d::ReduceOp::PRODUCT:
      return " by product";
    case c10d::ReduceOp::MIN:
      return " by minimum";
    case c10d::ReduceOp::MAX:
      return " by maximum";
    default:
      return " by another operation";
  }
}

WEFT_INLINE void TracedBackend::refuse_if_closed(Kind kind) const {
  if (!closed_.empty())
    fail<CommunicationError>("weft: ", name_of(kind), ", rank ", getRank(), " of ", getSize(), ": ", closed_);
}

WEFT_INLINE auto TracedBackend::note_parts(at::Tensor const& output, at::Tensor const& input,
                                           std::vector<int64_t> const& output_sizes,
                                           std::vector<int64_t> const& input_sizes) -> Noted {
  auto const counts = [&](at::Tensor const& tensor, std::vector<int64_t> const& sizes) {
    return sizes.empty() ? std::vector<int64_t>(static_cast<std::size_t>(getSize()), tensor.numel() / getSize())
                         : sizes;
  };
  refuse_if_closed(Kind::all_to_all);
  if (check_)
    check_->agree_on_parts(core::message(name_of(Kind::all_to_all), " of ", input.scalar_type()),
                           counts(input, input_sizes), counts(output, output_sizes), std::exchange(limit_, {}));
  return {recorder_, recorder_->note(Kind::all_to_all, axis_, getSize(), input.nbytes())};
}

WEFT_INLINE auto TracedBackend::note_lists(Tensors const& inputs) -> Noted {
  refuse_if_closed(Kind::all_to_all);
  if (check_) check_->agree(name_of(Kind::all_to_all), std::exchange(limit_, {}));
  return {recorder_, recorder_->note(Kind::all_to_all, axis_, getSize(), bytes_of(inputs))};
}

}  // namespace weft::comm
