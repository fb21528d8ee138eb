#include "ranks.hpp"

#include <weft/comm/device_mesh.hpp>
#include <weft/comm/mechanism_context.hpp>
#include <weft/launch/simulated.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::Axis, weft::Mesh;
using weft::comm::DeviceMesh;

namespace {

using Cube = Mesh<Axis<"replicate", 2>, Axis<"shard", 3>, Axis<"tensor", 2>>;

/// On any mesh, it does nothing.
struct Idle {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "Idle";
  static constexpr weft::NoConfig config{};
};
template <class M>
using MeshRun = weft::Fabric<Idle, M, weft::On<weft::Cpu>>;

}  // namespace

template <>
struct weft::Mechanism<Idle> : weft::MechanismDefaults {
  template <class Derived>
  class Mixin {
   protected:
    friend Derived;
    std::shared_ptr<model::Engine> make_engine(torch::nn::Module&, model::ParameterTable&, MechanismContext const&) {
      return std::make_shared<model::Engine>();
    }
  };
};

TEST_CASE("a mesh says where each rank stands, along each axis and along several", "[comm][mesh]") {
  auto const grid = weft::resolve<Cube>(12);
  for (int rank = 0; rank < 12; ++rank) {
    DeviceMesh mesh(grid, rank, {"tensor"});
    CHECK(mesh.names() == DeviceMesh::Names{"replicate", "shard", "tensor"});
    CHECK(mesh.data_axes() == DeviceMesh::Names{"replicate", "shard"});
    CHECK(mesh.describe() == "replicate 2 x shard 3 x tensor 2");
    for (auto const& name : mesh.names()) {
      CHECK(mesh.size(name) == grid.extent(name));
      CHECK(mesh.coordinate(name) == grid.coordinate(rank, name));
      CHECK(mesh.flattened({name}).members == grid.group(rank, name));
    }
    CHECK(mesh.data().members == grid.group(rank, "replicate", "shard"));
    CHECK(mesh.data().coordinate == grid.group_rank(rank, "replicate", "shard"));
    CHECK(mesh.data().coordinate == rank / 2);
    CHECK(mesh.flattened({"tensor", "replicate"}).members == grid.group(rank, "replicate", "tensor"));
    CHECK(mesh.flattened({"replicate", "shard", "tensor"}).name == "world");
    CHECK(mesh.flattened({"replicate", "shard", "tensor"}).coordinate == rank);
  }
}

TEST_CASE("axes of one rank add nothing to those beside them", "[comm][mesh]") {
  using Flat = Mesh<Axis<"data", 1>, Axis<"tensor", 4>>;
  DeviceMesh mesh(weft::resolve<Flat>(4), 2, {"tensor"});
  CHECK(mesh.flattened({"data", "tensor"}).name == "tensor");
  CHECK(mesh.data().size() == 1);
  CHECK(mesh.data().coordinate == 0);
  DeviceMesh shared(weft::resolve<Mesh<Axis<"tensor", 4>>>(4), 2, {"tensor"});
  CHECK(shared.data_axes().empty());
  CHECK(shared.data().members == std::vector{2});
}

TEST_CASE("a mesh knows its axes: another name is an error, and so is a group that is not there yet", "[comm][mesh]") {
  DeviceMesh mesh(weft::resolve<Cube>(12), 5);
  CHECK_THAT(message_of([&] { mesh.size("tp"); }),
             ContainsSubstring("mesh replicate 2 x shard 3 x tensor 2 has no axis \"tp\""));
  CHECK_THAT(message_of([&] { mesh.axis("shard"); }), ContainsSubstring("not connected yet"));
  CHECK_THAT(message_of([&] { DeviceMesh(weft::resolve<Cube>(12), 5, {"tp"}); }), ContainsSubstring("no axis \"tp\""));
}

TEST_CASE("a session's groups are made once, by setup, and shared by its models", "[comm][mesh]") {
  using Run = MeshRun<Mesh<Axis<"data", 2>, Axis<"other", 2>>>;
  auto const outcome = Run::launch({.devices = 4}, [](Run& fabric) {
    auto& mesh = fabric.mesh();
    expect(!mesh.is_connected(), "nothing is connected before");
    auto const first = fabric.setup(torch::nn::Linear(2, 1));
    expect(mesh.is_connected(), "setup connects");
    auto const data = mesh.axis("data"), other = mesh.axis("other");
    expect(data->size() == 2 && data->axis() == "data" && other->axis() == "other", "a group for each axis");
    auto const second = fabric.setup(torch::nn::Linear(2, 1));
    expect(mesh.axis("data") == data && mesh.axis("other") == other, "the same for the second model");
    expect(mesh.data().ranks == fabric.session().world, "all axes together are the world");
    auto const members = at::empty({2}, at::kLong);
    data->all_gather_into(members, at::full({1}, fabric.global_rank(), at::kLong));
    expect(members[0].item<int64_t>() == fabric.global_rank() % 2 &&
               members[1].item<int64_t>() == fabric.global_rank() % 2 + 2,
           "ranks along the first axis");
    weft::MechanismContext const all{fabric.session(), {}, mesh.names()};
    auto const inner = all.without("other");
    expect(inner.ranks() == data && inner.size("data") == 2 && !inner.has("other"), "what is left");
    bool refused = false;
    try {
      inner.axis("other");
    } catch (weft::ConfigurationError const& error) {
      refused = std::string(error.what()).find("which another mechanism has taken") != std::string::npos;
    }
    expect(refused, "an axis that was taken");
    return true;
  });
  if (!outcome) FAIL(outcome.failures().front().message);
}

TEST_CASE("Simulated runs a mesh, with a recorded group for each axis", "[comm][mesh]") {
  using Run = weft::Fabric<Idle, weft::Simulated<12>, Cube, weft::On<weft::Cpu>>;
  auto outcome = Run::launch({.simulated_rank = 7}, [](Run& fabric) {
    auto& mesh = fabric.mesh();
    fabric.session().connect_mesh();
    expect(mesh.coordinate("replicate") == 1 && mesh.coordinate("shard") == 0 && mesh.coordinate("tensor") == 1,
           "rank 7's place");
    fabric.recorder().start();
    for (auto const& name : mesh.names()) mesh.axis(name)->all_reduce(at::ones({2}));
    std::string text;
    for (auto const& event : fabric.recorder().stop())
      text += event.axis + " " + std::to_string(event.group_size) + ", ";
    return text;
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  CHECK(*outcome == "replicate 2, shard 3, tensor 2, ");
}
