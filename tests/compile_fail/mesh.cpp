// What a mesh is made of, and which strategies have one.
#include <weft/plan/grid.hpp>
#include <weft/plan/mesh.hpp>
#include <weft/plan/plan.hpp>
#include <weft/strategy/composition.hpp>

using namespace weft;

struct Block {};
using Hybrid = Mesh<Axis<"replicate", 2>, Axis<"shard", Infer>>;
using TwoByTwo = Mesh<Axis<"data_parallel", 2>, Axis<"tensor_parallel", 2>>;
template <class Inner>
struct CutLinear {  // a user's own, around another one
  using category = weft::category::strategy;
  using inner = Inner;
  static constexpr std::string_view name = "CutLinear";
  static constexpr NoConfig config{};
};
template <class... Policies>
struct Check {
  static_assert(Composition<Policies...>::check());
};

#if defined(CASE_not_an_axis)  // expect-error: weft: Mesh<...> is made of axes: write Mesh<Axis<
static_assert(Mesh<Axis<"data_parallel", 2>, Block>::check());
#elif defined(CASE_empty_axis)     // expect-error: weft: Mesh<...>: the extent of an axis is at least 1
static_assert(Mesh<Axis<"data_parallel", 0>>::check());
#elif defined(CASE_negative_axis)  // expect-error: weft: Mesh<...>: the extent of an axis is at least 1
static_assert(Mesh<Axis<"data_parallel", -2>>::check());
#elif defined(CASE_two_inferred)   // expect-error: weft: Mesh<...>: only one axis can be inferred
static_assert(Mesh<Axis<"data_parallel", Infer>, Axis<"tensor_parallel", Infer>>::check());
#elif defined(CASE_same_name)      // expect-error: weft: Mesh<...> has two axes of one name
static_assert(Mesh<Axis<"shard", 2>, Axis<"shard", 2>>::check());
#elif defined( \
    CASE_world_that_does_not_divide)  // expect-error: weft: the number of ranks is no multiple of the extents of the mesh
inline constexpr auto grid = resolve<Mesh<Axis<"data_parallel", Infer>, Axis<"tensor_parallel", 4>>, 6>();
#elif defined(CASE_world_that_differs)    // expect-error: weft: the extents of the mesh do not make the number of ranks
inline constexpr auto grid = resolve<TwoByTwo, 6>();
#elif defined(CASE_grid_of_no_mesh)       // expect-error: weft: Mesh<> has no axes
inline constexpr auto grid = resolve<Mesh<>, 6>();
#elif defined(CASE_grid_of_wrong_mesh)    // expect-error: weft: Mesh<...> has two axes of one name
inline constexpr auto grid = resolve<Mesh<Axis<"shard", 2>, Axis<"shard", 2>>, 4>();
#elif defined(CASE_wrong_mesh_in_fabric)  // expect-error: weft: Mesh<...> has two axes of one name
template struct Check<FSDP<HybridShard>, Mesh<Axis<"shard", 2>, Axis<"shard", 2>>>;
#elif defined(CASE_two_meshes)  // expect-error: weft: Fabric<...> has two meshes: keep one, with all axes in it
template struct Check<FSDP<HybridShard>, Hybrid, TwoByTwo>;
#elif defined( \
    CASE_mesh_inside_and_beside)  // expect-error: weft: Fabric<...> has two meshes: keep one, with all axes in it
template struct Check<FSDP<HybridShard, Hybrid>, Hybrid>;
#elif defined(CASE_mesh_with_single_device)  // expect-error: weft: SingleDevice has one rank and no mesh
template struct Check<TwoByTwo>;
#elif defined( \
    CASE_mesh_with_ddp)  // expect-error: weft: DDP, DataParallel and ZeRO treat all ranks alike: leave the mesh out
template struct Check<DDP<>, TwoByTwo>;
#elif defined(CASE_mesh_with_data_parallel)  // expect-error: weft: DDP, DataParallel and ZeRO treat all ranks alike
template struct Check<DataParallel, TwoByTwo>;
#elif defined(CASE_mesh_with_zero)           // expect-error: weft: DDP, DataParallel and ZeRO treat all ranks alike
template struct Check<ZeRO<3>, TwoByTwo>;
#elif defined(CASE_mesh_with_full_shard)     // expect-error: shards over all ranks: leave the mesh out
template struct Check<FSDP<FullShard>, Hybrid>;
#elif defined( \
    CASE_hybrid_without_mesh)  // expect-error: weft: HybridShard shards within groups of ranks and needs to know them
template struct Check<FSDP<HybridShard, WrapPolicy<Block>>>;
#elif defined(CASE_hybrid_inside_without_mesh)    // expect-error: weft: HybridShard shards within groups of ranks
template struct Check<CutLinear<CutLinear<FSDP<HybridShard, WrapPolicy<Block>>>>>;
#elif defined(CASE_mesh_inside_inner_and_beside)  // expect-error: weft: Fabric<...> has two meshes
template struct Check<CutLinear<FSDP<HybridShard, Hybrid>>, Hybrid>;
#elif defined(CASE_hybrid_with_other_axes)        // expect-error: weft: HybridShard reads the axes
template struct Check<FSDP<HybridShardGradOp, WrapPolicy<Block>>, TwoByTwo>;
#elif defined(CASE_model_parallel_without_mesh)   // expect-error: weft: ModelParallel<...> needs a mesh
template struct Check<ModelParallel<Plan<Block>>>;
#elif defined(CASE_model_parallel_without_axis)  // expect-error: weft: ModelParallel<...> divides tensors over the axis
template struct Check<ModelParallel<Plan<Block>>, Mesh<Axis<"data_parallel", 2>, Axis<"tensor", 2>>>;
#elif defined(CASE_model_parallel_without_plan)  // expect-error: weft: ModelParallel<...> needs to know what to divide
template struct Check<ModelParallel<TwoByTwo>>;
#elif defined( \
    CASE_model_parallel_with_block)  // expect-error: write the modules as Plan<Block, Colwise<&BlockImpl::w1>, ...>
template struct Check<ModelParallel<Block, TwoByTwo>>;
#elif defined( \
    CASE_model_parallel_with_wrong_inner)  // expect-error: write the modules as WrapPolicy<Block>, not as Block
template struct Check<ModelParallel<Plan<Block>, TwoByTwo, FSDP<FullShard, Block>>>;
#elif defined( \
    CASE_simulated_world)  // expect-error: weft: Simulated<World> and the mesh speak of different numbers of ranks
template struct Check<ModelParallel<Plan<Block>, TwoByTwo>, Simulated<8>>;
#else                      // control
static_assert(Mesh<Axis<"data_parallel", 2>, Axis<"tensor_parallel", Infer>>::check());
static_assert(Mesh<>::check());
inline constexpr auto grid = resolve<Mesh<Axis<"data_parallel", Infer>, Axis<"tensor_parallel", 4>>, 8>();
static_assert(resolve<TwoByTwo, 4>().world() == 4);
template struct Check<FSDP<HybridShard, WrapPolicy<Block>>, Hybrid>;
template struct Check<FSDP<HybridShard, Hybrid>>;
template struct Check<FSDP<HybridShardGradOp>, Mesh<Axis<"replicate", 2>, Axis<"shard", 2>>, Simulated<4>>;
template struct Check<ModelParallel<Plan<Block>, TwoByTwo, FSDP<FullShard, WrapPolicy<Block>>>>;
template struct Check<ModelParallel<Plan<Block>>, TwoByTwo, Simulated<4>>;
template struct Check<CutLinear<FSDP<FullShard, WrapPolicy<Block>>>, TwoByTwo>;
template struct Check<CutLinear<FSDP<HybridShard, Hybrid>>>;
#endif
