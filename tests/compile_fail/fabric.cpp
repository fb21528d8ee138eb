// torch
#undef USE_C10D_NCCL  // what a program built without it is told, on every machine
#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor const& x) { return x; }
};
WEFT_MODULE(Block);

using namespace weft;
using Run = Fabric<DDP<>>;

void job(Run& fabric) {
  Block module;
#if defined( \
    CASE_wrapped_twice)  // expect-error: weft: setup: this model is set up already; pass the module itself, once
  auto model = fabric.setup(fabric.setup(module));
#elif defined( \
    CASE_not_a_module)  // expect-error: weft: setup: pass a module holder (torch::nn::Linear, WEFT_MODULE's type) or a std::shared_ptr to a module
  auto model = fabric.setup(3);
#elif defined( \
    CASE_not_a_logger)  // expect-error: weft: add_logger: a logger derives from weft::report::Logger and overrides log(metrics, step)
  auto logger = fabric.add_logger(std::string("runs"));
#elif defined( \
    CASE_undescribed_optimizer)  // expect-error: weft: setup: pass an optimizer description (weft::AdamW{.lr = ...}) or a torch::optim::Optimizer
  auto setup = fabric.setup(module, 0.1);
#else
  auto [model, optimizer] = fabric.setup(module, AdamW{.lr = 0.1});
#endif
}

struct NotTransferable {
  explicit NotTransferable(int& target) : target(target) {}
  int& target;
};

template <class Member>
struct Opened {
  Member member{};
};
template <class Member, class F>
void weft_visit(Opened<Member>& opened, F&& f) {
  f(opened.member);
}

#if defined( \
    CASE_result_that_cannot_travel)  // expect-error: weft: launch: the function's result has to travel from rank 0's process
auto launched() {
  return Run::launch([](Run&) {
    static int number;
    return NotTransferable(number);
  });
}
#elif defined(CASE_member_that_cannot_travel)  // expect-error: weft: a member that weft_visit hands on has to travel
auto launched() {
  return Run::launch([](Run&) { return Opened<int*>(); });
}
#else
auto launched() {
  static_cast<void>(Run::launch([](Run&) { return Opened<int>(); }));
  return Run::launch([](Run&) { return std::vector<double>{1.0}; });
}
#endif

#if defined( \
    CASE_straight_line_with_fork)  // expect-error: weft: Fabric<...> fabric(options); fabric.launch() needs ranks that already run the whole program
void straight() { Run fabric; }
#else
void straight() {
  Fabric<SingleDevice> fabric;
  fabric.launch();
  Fabric<DDP<>, Environment> joined;
  joined.launch();
}
#endif

#if defined( \
    CASE_own_launcher)  // expect-error: weft: this launcher starts no ranks here: write Fork, Popen, Environment, or give yours a static cluster(variables)
struct Ours {
  using category = weft::category::launcher;
  static constexpr std::string_view name = "Ours";
};
auto ours() {
  return Fabric<DDP<>, Ours>::launch([](auto&) {});
}
#elif defined( \
    CASE_precision_without_rules)  // expect-error: weft: Mechanism<P> of this precision has no Rules: give it a struct Rules : weft::precision::Rules
struct Lowered {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Lowered";
  static constexpr PrecisionConfig config{};
};
template <>
struct weft::Mechanism<Lowered> {};
auto lowered() {
  return Fabric<DDP<>, Lowered>::launch([](auto&) {});
}
#elif defined(CASE_rules_without_constructor)  // expect-error: (using weft::precision::Rules::Rules)
struct Lowered {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Lowered";
  static constexpr PrecisionConfig config{};
};
template <>
struct weft::Mechanism<Lowered> {
  struct Rules : weft::precision::Rules {};
};
auto lowered() {
  return Fabric<DDP<>, Lowered>::launch([](auto&) {});
}
#elif defined( \
    CASE_no_scaler)  // expect-error: weft: loss_scaler: this Fabric's precision scales no losses: write Fp16Mixed, or .loss_scaling = true in the config of yours
double scale(Fabric<DDP<>, Bf16Mixed>& fabric) { return fabric.loss_scaler().scale(); }
#elif defined( \
    CASE_nccl_not_built)  // expect-error: weft: several processes on CUDA talk by NCCL, and this program is built without it: build where CUDA and NCCL are found, with -DUSE_C10D_NCCL=1
auto nccl() {
  return Fabric<DDP<>, Nccl>::launch([](auto&) {});
}
#elif defined(CASE_nccl_direct_not_built)  // expect-error: or write On<Cpu>, with the backend Gloo
auto direct() {
  return Fabric<DDP<>, NcclDirect>::launch([](auto&) {});
}
#elif defined( \
    CASE_cuda_without_nccl)  // expect-error: weft: several processes on CUDA talk by NCCL, and this program is built without it
auto cuda() {
  return Fabric<DDP<>, On<Cuda>>::launch([](auto&) {});
}
#elif defined( \
    CASE_hook_without_call)  // expect-error: weft: CommHook<Hook>: Hook needs at::Tensor operator()(c10d::GradBucket&, weft::comm::Communicator&)
struct Hook {};
auto hooked() {
  return Fabric<DDP<CommHook<Hook>>>::launch([](auto&) {});
}
#elif defined(CASE_not_a_method)  // expect-error: weft: call<&M::method>(...): write a member function of the model
struct TwoImpl : torch::nn::Module {
  int field = 0;
  torch::Tensor forward() { return {}; }
};
void method(Run& fabric) { fabric.setup(std::make_shared<TwoImpl>()).call<&TwoImpl::field>(); }
#else
auto fsdp() {
  return Fabric<FSDP<FullShard, WrapPolicy<Block>>, On<Cpu>>::launch([](auto&) {});
}
auto one_process() {
  return Fabric<SingleDevice, On<Cuda>>::launch([](auto&) {});
}
struct Hook {
  at::Tensor operator()(c10d::GradBucket& bucket, comm::Communicator&) { return bucket.getBuffer(); }
};
auto hooked() {
  return Fabric<DDP<CommHook<Hook>>>::launch([](auto&) {});
}
#endif

// A collective outside of launch's function: there is no fabric to call it on.
#if defined( \
    CASE_fabric_out_of_nothing)  // expect-error: weft: Fabric<...> fabric(options); fabric.launch() needs ranks that already run the whole program
double outside() { return Run().all_reduce(1.0); }
#else
double outside(Run& fabric) { return fabric.all_reduce(1.0); }
#endif

// What has no memory yet is for setup alone.
#if defined(CASE_init_module_of_no_module)  // expect-error: weft: init_module<M>: M is a module holder
auto built(Run& fabric) { return fabric.init_module<int>(); }
#elif defined( \
    CASE_unmaterialized_is_called)  // expect-error: weft: a module from init_module has no memory before setup: pass it to fabric.setup
auto built(Run& fabric) { return fabric.init_module<Block>()(torch::Tensor()); }
#elif defined( \
    CASE_unmaterialized_is_used)  // expect-error: weft: a module from init_module has no memory before setup: pass it to fabric.setup, and use what
auto built(Run& fabric) { return fabric.init_module<Block>()->parameters(); }
#else
auto built(Run& fabric) { return fabric.setup(fabric.init_module<Block>(Init{.empty = true}))->parameters(); }
#endif

// A strategy of one's own, member by member.
struct Mine {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "Mine";
  static constexpr NoConfig config{};
};
#if defined(CASE_no_mechanism)  // expect-error: weft: strategy X has no Mechanism<X>: specialize weft::Mechanism<X>
#elif defined( \
    CASE_no_mixin)  // expect-error: weft: Mechanism<S> of this strategy has no Mixin: give it a template <class Derived> class Mixin
template <>
struct weft::Mechanism<Mine> : weft::MechanismDefaults {};
#elif defined( \
    CASE_no_make_engine)  // expect-error: weft: the Mixin of this strategy's Mechanism needs std::shared_ptr<model::Engine> make_engine
template <>
struct weft::Mechanism<Mine> : weft::MechanismDefaults {
  template <class Derived>
  class Mixin {};
};
#else
template <>
struct weft::Mechanism<Mine> : weft::MechanismDefaults {
  template <class Derived>
  class Mixin {
   protected:
    friend Derived;
    std::shared_ptr<model::Engine> make_engine(torch::nn::Module&, model::ParameterTable&, MechanismContext const&) {
      return std::make_shared<model::Engine>();
    }
  };
};
#endif
auto mine() {
  return Fabric<Mine>::launch([](auto& fabric) { fabric.setup(Block()); });
}

// LCH-09
struct Mpi {
  using category = weft::category::backend;
  static constexpr std::string_view name = "Mpi";
};
#if defined(CASE_backend_that_nobody_creates)  // expect-error: weft: nothing here creates this backend
auto with_backend() {
  return Fabric<DDP<>, Mpi>::launch([](auto&) {});
}
#else
auto with_backend() {
  return Fabric<DDP<>, Gloo>::launch([](auto&) {});
}
#endif
