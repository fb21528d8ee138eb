// torch
// What callbacks, methods of models and raw weights say where they are misused.
#include <weft/weft.hpp>

using namespace weft;
using Run = Fabric<SingleDevice>;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor const& x) { return x; }
  torch::Tensor encode(torch::Tensor const& x) { return x; }
};
TORCH_MODULE(Net);
struct OtherImpl : torch::nn::Module {
  torch::Tensor encode(torch::Tensor const& x) { return x; }
};

struct EpochEnd {
  int epoch;
};
struct Printer {
  void on(EpochEnd const&) {}
};
struct Misspelt {
  void om(EpochEnd const&) {}
};

void job(Run& fabric) {
  auto model = fabric.setup(Net());
  torch::Tensor x;
#if defined( \
    CASE_event_that_nobody_hears)  // expect-error: weft: call: none of these callbacks has on(Event const&) for this event
  auto callbacks = fabric.callbacks(Printer());
  callbacks.call(x);
#elif defined( \
    CASE_callback_that_hears_nothing)  // expect-error: weft: callbacks: an object without any function on(Event const&) never hears of anything
  auto callbacks = fabric.callbacks(Printer(), Misspelt());
#elif defined(CASE_no_such_callback)  // expect-error: weft: get<Object>(): no callback is of this type
  auto callbacks = fabric.callbacks(Printer());
  auto& other = callbacks.get<Misspelt>();
#elif defined( \
    CASE_forward_marked)  // expect-error: weft: call<&M::forward>(...): forward is what the model itself does; write model(...)
  model.call<&NetImpl::forward>(x);
#elif defined( \
    CASE_method_of_another)  // expect-error: weft: call<&M::method>(...): write a member function of the model's class
  model.call<&OtherImpl::encode>(x);
#elif defined(CASE_raw_weights_of_a_model)  // expect-error: a model that setup returned takes load_weights
  fabric.load_raw("weights.safetensors", model);
#elif defined( \
    CASE_shared_polymorphic_value)  // expect-error: weft: what this std::shared_ptr points to cannot be copied as what it is
  fabric.all_reduce(std::make_shared<NetImpl>());
#elif defined( \
    CASE_no_models)  // expect-error: weft: setup_optimizers(std::tie(models...), optimizers...): name at least one model
  fabric.setup_optimizers(std::tie(), AdamW{});
#elif defined( \
    CASE_clipping_a_module)  // expect-error: weft: clip_gradients(model, optimizer, clip): pass what setup returned
  fabric.clip_gradients(Net(), fabric.setup_optimizers(model, AdamW{}), ClipNorm{1.0});
#elif defined( \
    CASE_clipping_with_a_plain_optimizer)  // expect-error: weft: clip_gradients(model, optimizer, clip): pass what setup returned
  fabric.clip_gradients(model, torch::optim::SGD(Net()->parameters(), 0.1), ClipNorm{1.0});
#elif defined( \
    CASE_clipping_modules)  // expect-error: weft: clip_gradients(model, optimizer, clip): pass what setup returned
  fabric.clip_gradients(std::tuple(Net(), Net()), fabric.setup_optimizers(model, AdamW{}), ClipNorm{1.0});
#elif defined(CASE_saving_a_module)   // expect-error: weft: save_weights(path, model): pass a model that setup returned
  fabric.save_weights("weights.safetensors", Net());
#elif defined(CASE_loading_a_module)  // expect-error: a module that is not set up takes load_raw
  fabric.load_weights("weights.safetensors", Net());
#else                                 // control
  auto optimizer = fabric.setup_optimizers(std::tie(model), AdamW{});
  fabric.clip_gradients(std::tie(model), optimizer, ClipNorm{1.0});
  fabric.clip_gradients(model, optimizer, ClipNorm{1.0});
  fabric.save_weights("weights.safetensors", model);
  fabric.load_weights("weights.safetensors", model);
  auto callbacks = fabric.callbacks(Printer());
  callbacks.call(EpochEnd{1});
  callbacks.get<Printer>();
  model.call<&NetImpl::encode>(x);
  fabric.load_raw("weights.safetensors", Net());
  fabric.all_reduce(std::make_shared<torch::Tensor>(x));
#endif
}
