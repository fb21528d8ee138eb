// torch
#undef USE_C10D_NCCL  // what a program built without it is told, on every machine
#include <weft/data_parallel/data_parallel.hpp>
#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

using namespace weft;

struct Opaque {
  at::Tensor tensor;
};
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  void reset() override {}
  at::Tensor encode(at::Tensor const& x) { return x; }
  at::Tensor forward(at::Tensor const& x, Opaque const& other) { return x + other.tensor; }
};
WEFT_MODULE(Net);

void divided(Fabric<DataParallel>& fabric) {
  auto model = fabric.setup(Net());
#if defined( \
    CASE_argument_that_cannot_be_cut)  // expect-error: weft: DataParallel looks for tensors in the arguments to cut them, and finds no way into this one
  model(at::ones({2}), Opaque{});
#elif defined( \
    CASE_forward_called_by_its_name)  // expect-error: weft: call<&M::forward>(...): forward is what the model itself does; write model(...)
  model.call<&NetImpl::forward>(at::ones({2}), whole(Opaque{}));
#else
  model(at::ones({2}), whole(Opaque{}));
  model.call<&NetImpl::encode>(at::ones({2}));
#endif
}

#if defined( \
    CASE_join_under_fsdp)  // expect-error: weft: join: ranks of this strategy need each other inside of forward, for every unit
using Uneven = Fabric<FSDP<>>;
#else
using Uneven = Fabric<DDP<>>;
#endif
void joined(Uneven& fabric) {
  auto [model, optimizer] = fabric.setup(Net(), AdamW{.lr = 0.1});
  fabric.join(model, optimizer, [] {});
}
