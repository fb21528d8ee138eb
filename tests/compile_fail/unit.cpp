// torch
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <weft/unit/unit.hpp>

struct Base : torch::nn::Module {
  at::Tensor weight;
};

#if defined(CASE_overloaded_forward)  // expect-error: BlockImpl needs exactly one public forward that is no template
struct BlockImpl : Base {
  at::Tensor forward(at::Tensor x) { return x; }
  at::Tensor forward(at::Tensor x, int times) { return x * times; }
};
#elif defined(CASE_template_forward)  // expect-error: BlockImpl needs exactly one public forward that is no template
struct BlockImpl : Base {
  template <class T>
  at::Tensor forward(T x) {
    return x;
  }
};
#elif defined(CASE_no_forward)        // expect-error: BlockImpl needs exactly one public forward that is no template
struct BlockImpl : Base {
  at::Tensor forwards(at::Tensor x) { return x; }
};
#elif defined(CASE_private_forward)   // expect-error: BlockImpl needs exactly one public forward that is no template
class BlockImpl : public Base {
  at::Tensor forward(at::Tensor x) { return x; }
};
#elif defined(CASE_sequential)        // expect-error: keep TORCH_MODULE for containers like Sequential
using BlockImpl = torch::nn::SequentialImpl;
#elif defined(CASE_declared_only)     // expect-error: write it after the definition of BlockImpl
struct BlockImpl;
#elif defined(CASE_not_a_module)      // expect-error: BlockImpl must derive from torch::nn::Module
struct BlockImpl {
  at::Tensor forward(at::Tensor x) { return x; }
};
#elif defined(CASE_final_module)      // expect-error: BlockImpl is final, and a unit derives from it
struct BlockImpl final : Base {
  at::Tensor forward(at::Tensor x) { return x; }
};
#elif defined(CASE_volatile_forward)  // expect-error: forward may be const, & and noexcept
struct BlockImpl : Base {
  at::Tensor forward(at::Tensor x) volatile { return x; }
};
#elif defined(CASE_rvalue_forward)    // expect-error: forward may be const, & and noexcept
struct BlockImpl : Base {
  at::Tensor forward(at::Tensor x) && { return x; }
};
#elif defined(CASE_void_output)       // expect-error: forward must return by value a tensor
struct BlockImpl : Base {
  void forward(at::Tensor x) { weight = x; }
};
#elif defined(CASE_reference_output)  // expect-error: forward must return by value a tensor
struct BlockImpl : Base {
  at::Tensor const& forward(at::Tensor x) { return weight = x; }
};
#elif defined(CASE_opaque_output)     // expect-error: weft_visit(T&, f) declared before WEFT_MODULE
struct Output {
  at::Tensor logits;
};
struct BlockImpl : Base {
  Output forward(at::Tensor x) { return {x}; }
};
#elif defined(CASE_pointer_output)    // expect-error: forward must return by value a tensor
struct BlockImpl : Base {
  at::Tensor* forward(at::Tensor) { return &weight; }
};
#else                                 // control
struct Output {
  at::Tensor logits;
};
template <class F>
void weft_visit(Output& output, F&& f) {
  f(output.logits);
}
struct BlockImpl : Base {
  Output forward(at::Tensor x, int times = 2) const noexcept { return {x * times}; }
};
#endif
WEFT_MODULE(Block);

// An error is one error: what is written with the module afterwards adds none.
#if !defined(CASE_declared_only) && !defined(CASE_not_a_module)
Block make() { return Block(); }
auto run(Block& block, at::Tensor x) { return block(x); }
#endif
