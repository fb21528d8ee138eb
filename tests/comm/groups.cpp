#include "ranks.hpp"

using namespace test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("groups of a 2 by 2 mesh reduce each on their own", "[comm][groups]") {
  CHECK(on_ranks(4, [](Run<>& fabric) {
    auto& session = fabric.session();
    int const rank = session.ranks.global_rank;
    auto const rows = session.connect_group("shard", rank < 2 ? std::vector{0, 1} : std::vector{2, 3});
    auto const columns = session.connect_group("replicate", rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3});
    expect(rows->rank() == rank % 2 && rows->size() == 2 && rows->axis() == "shard", "this rank's place in its row");
    expect(columns->rank() == rank / 2 && columns->size() == 2, "and in its column");
    fabric.recorder().start();
    auto first = at::full({3}, rank + 1.0), second = first.clone();
    auto under_way = rows->all_reduce_async(first);  // both groups at once
    columns->all_reduce(second);
    under_way.wait();
    expect(first.eq(rank < 2 ? 3 : 7).all().item<bool>(), "the sum of the row");
    expect(second.eq(rank % 2 == 0 ? 4 : 6).all().item<bool>(), "the sum of the column");
    auto part = at::empty({1});
    rows->reduce_scatter_into(part, at::full({2}, rank + 1.0));
    expect(part.item<float>() == (rank < 2 ? 3 : 7), "reduce_scatter on the row");
    auto const events = fabric.recorder().stop();
    expect(events.size() == 3 && events[0].group_size == 2, "the session's recorder sees groups");
    auto const again = session.connect_group("shard", rank < 2 ? std::vector{0, 1} : std::vector{2, 3});
    again->all_reduce(first);
    expect(first.eq(rank < 2 ? 6 : 14).all().item<bool>(), "the same group, connected again");
    return true;
  }));
}

TEST_CASE("groups: some ranks only, in an order of their own, and of one", "[comm][groups]") {
  CHECK(on_ranks(3, [](Run<>& fabric) {
    auto& session = fabric.session();
    int const rank = session.ranks.global_rank;
    if (rank != 1) {
      auto const pair = session.connect_group("pair", {2, 0});
      expect(pair->rank() == (rank == 2 ? 0 : 1), "ranks are positions in the list");
      auto gathered = at::empty({2});
      pair->all_gather_into(gathered, at::full({1}, rank + 0.0));
      expect(gathered.equal(at::tensor({2.0f, 0.0f})), "gathered in the list's order");
    }
    auto const alone = session.connect_group("alone", {rank});
    expect(alone->size() == 1 && alone->rank() == 0, "a group of one");
    auto value = at::full({2}, rank + 1.0), part = at::empty({2}), whole = at::empty({2});
    alone->all_reduce(value);
    alone->reduce_scatter_into(part, value);
    alone->all_gather_into(whole, value);
    alone->broadcast(value);
    alone->barrier();
    for (auto const& tensor : {value, part, whole})
      expect(tensor.eq(rank + 1).all().item<bool>(), "a group of one leaves values");
    return true;
  }));
}

TEST_CASE(
    "COL-06: groups made by their members alone are right, and another order on one rank is an error that says where "
    "the ranks are",
    "[comm][groups][known]") {
  CHECK(on_ranks(4, [](Run<>& fabric) {
    int const rank = fabric.global_rank();
    bool const outer = rank == 0 || rank == 3;
    auto const pair = fabric.session().connect_group(outer ? "outer" : "inner",
                                                     outer ? std::vector{0, 3} : std::vector{1, 2});
    auto sum = at::full({2}, rank + 0.0);
    pair->all_reduce(sum);
    expect(sum.eq(3).all().item<bool>() && pair->size() == 2, "0 + 3, 1 + 2");
    return true;
  }));
  auto const outcome = Run<>::launch({.devices = 2, .collective_timeout = std::chrono::milliseconds(1500)},
                                     [](Run<>& fabric) {
                                       bool const first = fabric.global_rank() == 0;
                                       auto const a = fabric.session().connect_group(first ? "a" : "b", {0, 1}),
                                                  b = fabric.session().connect_group(first ? "b" : "a", {0, 1});
                                     });
  REQUIRE(!outcome);
  auto const message = outcome.failures().front().message;
  CHECK_THAT(message, ContainsSubstring("connecting axis a, rank 0 of 2") ||
                          ContainsSubstring("connecting axis b, rank 1 of 2"));
  CHECK_THAT(message,
             ContainsSubstring("this rank is at a: 0 1 #0; rank 1 is at b: 0 1 #0; connect groups in one order") ||
                 ContainsSubstring("this rank is at b: 0 1 #0; rank 0 is at a: 0 1 #0; connect groups in one order"));
}

TEST_CASE("many groups live beside each other", "[comm][groups]") {
  CHECK(on_ranks(3, [](Run<>& fabric) {
    int const rank = fabric.global_rank();
    std::vector<std::shared_ptr<weft::comm::Communicator>> groups;
    for (int i = 0; i < 24; ++i) {
      std::vector<int> members{i % 3, (i + 1) % 3};
      if (i % 4 == 3) members = {0, 1, 2};
      if (std::find(members.begin(), members.end(), rank) != members.end())
        groups.push_back(fabric.session().connect_group("axis" + std::to_string(i), members));
    }
    std::vector<weft::comm::Pending> under_way;
    std::vector<at::Tensor> sums;
    for (auto const& group : groups) {
      sums.push_back(at::ones({2}));
      under_way.push_back(group->all_reduce_async(sums.back()));
    }
    for (auto& pending : under_way) pending.wait();
    for (std::size_t i = 0; i < groups.size(); ++i)
      expect(sums[i].eq(groups[i]->size()).all().item<bool>(), "each counts its own ranks");
    expect(groups.size() == 18, "eighteen of twenty-four for each rank");
    return true;
  }));
}

TEST_CASE("Gloo listens where it is told", "[comm]") {
  auto const sum = [](Run<>& fabric) { return fabric.all_reduce(1.0, weft::ReduceOp::sum); };
  for (auto const* const place : {"lo", "127.0.0.1", "localhost"}) {
    INFO(place);
    auto outcome = Run<>::launch({.devices = 2, .interface = place}, sum);
    REQUIRE(outcome);
    CHECK(*outcome == 2);
  }
  auto const nowhere = Run<>::launch({.devices = 2, .interface = "no-such-place"}, sum);
  REQUIRE(!nowhere);
  CHECK_THAT(nowhere.failures().front().message,
             ContainsSubstring("Gloo cannot listen at no-such-place, which is to be an interface of this node"));
  ::setenv("GLOO_SOCKET_IFNAME", "no-such-interface", 1);
  auto const variable = Run<>::launch({.devices = 2}, sum);
  ::unsetenv("GLOO_SOCKET_IFNAME");
  REQUIRE(!variable);
  CHECK_THAT(variable.failures().front().message, ContainsSubstring("Gloo cannot listen at no-such-interface"));
}

TEST_CASE("a group that cannot be says why", "[comm][groups]") {
  auto const messages = on_ranks(2, [](Run<>& fabric) {
    auto& session = fabric.session();
    std::vector<std::string> messages;
    messages.push_back(message_of([&] { session.connect_group("dp", {1 - session.ranks.global_rank}); }));
    messages.push_back(message_of([&] { session.connect_group("dp", {0, 2}); }));
    messages.push_back(message_of([&] { session.connect_group("dp", {0, 0}); }));
    return messages;
  });
  CHECK_THAT(messages[0], ContainsSubstring("connecting axis dp: rank 0 is not among the group's members (dp: 1)"));
  CHECK_THAT(messages[1], ContainsSubstring("member 2 is not a rank of the world"));
  CHECK_THAT(messages[2], ContainsSubstring("listed twice"));
  auto const outcome = weft::Fabric<weft::SingleDevice>::launch([](auto& fabric) {
    CHECK_THAT(message_of([&] { fabric.session().connect_group("dp", {0}); }),
               ContainsSubstring("this program has one process"));
  });
  CHECK(outcome.exit_code() == 0);
}
