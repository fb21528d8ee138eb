#include <catch2/catch_all.hpp>

#include <algorithm>
#include <map>
#include <string>

#include <weft/plan/placement.hpp>

using namespace weft;
using plan::Box, plan::boxes, plan::boxes_of, plan::Cut, plan::local_shape;
using Sizes = std::vector<int64_t>;

namespace {

// Every list of so many extents from 0 to largest.
std::vector<Sizes> all_lists(std::size_t length, int64_t largest) {
  std::vector<Sizes> lists{{}};
  for (std::size_t i = 0; i < length; ++i) {
    std::vector<Sizes> longer;
    for (auto const& list : lists)
      for (int64_t next = 0; next <= largest; ++next) {
        longer.push_back(list);
        longer.back().push_back(next);
      }
    lists = std::move(longer);
  }
  return lists;
}

int64_t numel_of(Sizes const& shape) {
  int64_t numel = 1;
  for (auto const extent : shape) numel *= extent;
  return numel;
}

// Whether the elements from begin on, before end, are all that lie between their smallest and largest index in each
// dim.
bool is_box(Sizes const& shape, int64_t begin, int64_t end) {
  int64_t volume = 1, stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0; stride *= shape[dim]) {
    int64_t smallest = shape[dim], largest = -1;
    for (int64_t i = begin; i < end; ++i) {
      auto const index = i / stride % shape[dim];
      smallest = std::min(smallest, index);
      largest = std::max(largest, index);
    }
    volume *= largest - smallest + 1;
  }
  return volume == end - begin;
}

// Dims from the outermost in memory to the innermost.
using Order = std::vector<std::size_t>;

Sizes strides_of(Sizes const& shape, Order const& order) {
  Sizes strides(shape.size(), 1);
  int64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0; step *= shape[order[i]]) strides[order[i]] = step;
  return strides;
}

// [Note: one element at a time] A rank's part with the number of each element in it, made as one would by hand: what
// placement.hpp says in closed form is compared with this.
struct Part {
  Sizes shape;
  Sizes elements;  // in the order of memory
};

int64_t at(Part const& part, Order const& order, Sizes const& index) {
  int64_t place = 0;
  for (auto const dim : order) place = place * part.shape[dim] + index[dim];
  return part.elements[static_cast<std::size_t>(place)];
}

// Every index of a shape, the last dim of the order fastest.
template <class Visit>
void for_each_index(Sizes const& shape, Order const& order, Visit const& visit) {
  Sizes index(shape.size(), 0);
  for (auto left = numel_of(shape); left > 0; --left) {
    visit(index);
    for (std::size_t i = order.size(); i-- > 0;) {
      if (++index[order[i]] < shape[order[i]]) break;
      index[order[i]] = 0;
    }
  }
}

Part taken(Part const& part, Order const& order, Shard const& shard, int ranks, int rank) {
  auto const dim = static_cast<std::size_t>(shard.dim);
  auto const size = part.shape[dim] / shard.parts;
  Sizes indices;  // along the dim
  for (int64_t p = 0; p < shard.parts; ++p)
    for (int64_t i = 0; i < size; ++i)
      if (i / std::max<int64_t>(1, (size + ranks - 1) / ranks) == rank) indices.push_back(p * size + i);
  Part result{part.shape, {}};
  result.shape[dim] = static_cast<int64_t>(indices.size());
  for_each_index(result.shape, order, [&](Sizes index) {
    index[dim] = indices[static_cast<std::size_t>(index[dim])];
    result.elements.push_back(at(part, order, index));
  });
  return result;
}

Part taken(Part const& part, FlatShard const& flat, int rank) {
  Part result;
  for (std::size_t i = 0; i < part.elements.size(); ++i)
    if ((flat.offset + static_cast<int64_t>(i)) / flat.chunk == rank) result.elements.push_back(part.elements[i]);
  result.shape = {static_cast<int64_t>(result.elements.size())};
  return result;
}

Part part_of(Sizes const& shape, Order const& order, std::vector<Cut> const& cuts) {
  Part part{shape, {}};
  for_each_index(shape, order, [&](Sizes const& index) {
    int64_t number = 0;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) number = number * shape[dim] + index[dim];
    part.elements.push_back(number);
  });
  for (auto const& cut : cuts) {
    if (auto const* const shard = std::get_if<Shard>(&cut.placement))
      part = taken(part, order, *shard, cut.size, cut.coordinate);
    if (auto const* const flat = std::get_if<FlatShard>(&cut.placement)) part = taken(part, *flat, cut.coordinate);
  }
  return part;
}

// Elements of boxes by their row-major numbers, each box in the order of memory.
Sizes elements_of(std::vector<Box> const& boxes, Sizes const& shape, Order const& order) {
  Sizes elements;
  for (auto const& box : boxes)
    for_each_index(box.sizes, order, [&](Sizes const& index) {
      int64_t number = 0;
      for (std::size_t dim = 0; dim < shape.size(); ++dim) number = number * shape[dim] + box.offsets[dim] + index[dim];
      elements.push_back(number);
    });
  return elements;
}

// What is wrong with the parts of all ranks of these axes.
std::string wrong_with(Sizes const& shape, Order const& order, std::vector<Placement> const& placements,
                       std::vector<int> const& sizes) {
  auto const strides = strides_of(shape, order);
  int replicas = 1, num_ranks = 1;
  bool is_flat = false;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    num_ranks *= sizes[axis];
    is_flat = is_flat || std::holds_alternative<FlatShard>(placements[axis]);
    if (std::holds_alternative<Replicate>(placements[axis]) || std::holds_alternative<Partial>(placements[axis]))
      replicas *= sizes[axis];
  }
  std::map<int64_t, int> holders;
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<Cut> cuts;
    for (std::size_t axis = sizes.size(), rest = static_cast<std::size_t>(rank); axis-- > 0;) {
      cuts.insert(cuts.begin(), {placements[axis], sizes[axis], static_cast<int>(rest) % sizes[axis]});
      rest /= static_cast<std::size_t>(sizes[axis]);
    }
    auto const part = part_of(shape, order, cuts);
    if (local_shape(shape, cuts) != part.shape) return "the shape of rank " + std::to_string(rank);
    auto held = elements_of(boxes_of(shape, strides, cuts), shape, order);
    for (auto const element : held) ++holders[element];
    auto expected = part.elements;
    if (!is_flat) {  // boxes of several parts interleave
      std::sort(held.begin(), held.end());
      std::sort(expected.begin(), expected.end());
    }
    if (held != expected) return "the boxes of rank " + std::to_string(rank);
  }
  for (int64_t element = 0; element < numel_of(shape); ++element)
    if (holders[element] != replicas) return "how many ranks hold element " + std::to_string(element);
  return "";
}

// Calls with every list of placements for these axes: a flat one stands last.
template <class Visit>
void for_each_placement(Sizes const& shape, std::vector<int> const& sizes, Visit const& visit,
                        std::vector<Placement> chosen = {}, Sizes left = {}) {
  if (chosen.empty()) left = shape;
  if (chosen.size() == sizes.size()) return visit(chosen);
  auto const with = [&](Placement const& placement, Sizes const& rest) {
    auto more = chosen;
    more.push_back(placement);
    for_each_placement(shape, sizes, visit, more, rest);
  };
  with(chosen.size() % 2 == 0 ? Placement(Replicate{}) : Placement(Partial{}), left);
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    for (int64_t const parts : {1, 2, 3}) {
      // Ranks may be left with different sizes, of which not all would be a multiple.
      if (parts > 1 && (shape[dim] % parts != 0 || left[dim] != shape[dim])) continue;
      auto rest = left;
      rest[dim] = -1;
      with(Shard{static_cast<int64_t>(dim), parts}, rest);
    }
  if (chosen.size() + 1 == sizes.size()) {
    auto const numel = numel_of(shape);
    for (int64_t const offset : {0, 3}) {
      auto const chunk = std::max<int64_t>(1, (offset + numel + sizes.back() - 1) / sizes.back());
      with(FlatShard{offset, chunk}, left);
    }
  }
}

void check_all(std::vector<Sizes> const& shapes, std::vector<std::vector<int>> const& axes) {
  for (auto const& shape : shapes)
    for (auto const& sizes : axes) {
      Order order(shape.size());
      for (std::size_t dim = 0; dim < order.size(); ++dim) order[dim] = dim;
      std::vector<Order> orders{order};
      if (order.size() > 1) {  // transposed, channels-last
        orders.push_back({order.rbegin(), order.rend()});
        std::rotate(order.begin() + 1, order.begin() + 2, order.end());
        if (order.size() > 2) orders.push_back(order);
      }
      for (auto const& one : orders)
        for_each_placement(shape, sizes, [&](std::vector<Placement> const& placements) {
          auto const wrong = wrong_with(shape, one, placements, sizes);
          if (wrong.empty()) return;
          std::string text;
          for (auto const& placement : placements) text += plan::describe(placement) + " ";
          INFO("shape " << Catch::Detail::stringify(shape) << " order " << Catch::Detail::stringify(one) << " axes "
                        << Catch::Detail::stringify(sizes) << ": " << text);
          FAIL(wrong);
        });
    }
}

template <class Call>
std::string message_of(Call const& call) {
  try {
    call();
  } catch (ConfigurationError const& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("every element lies on the right ranks, and on as many as there are replicas: up to three dims, two axes",
          "[plan]") {
  std::vector<std::vector<int>> const axes{{}, {1}, {2}, {3}, {2, 2}, {3, 2}};
  for (std::size_t num_dims : {0, 1, 2}) check_all(all_lists(num_dims, 4), axes);
  check_all({{6}, {7, 1}, {6, 2}, {2, 3, 4}, {3, 1, 2}, {1, 1, 5}, {4, 0, 2}, {2, 6, 1}}, axes);
}
TEST_CASE("every element lies on the right ranks, and on as many as there are replicas: four dims, three axes",
          "[plan]") {
  check_all({{2, 3, 2, 1}, {3, 1, 1, 4}, {2, 2, 0, 1}, {1, 1, 1, 1}}, {{2, 2, 2}, {3, 1, 2}});
  check_all({{2, 2}, {5}, {3, 4}}, {{2, 3, 2}, {1, 2, 3}});
}

TEST_CASE("a dim is divided as torch.chunk divides it", "[plan]") {
  auto const sizes = [](int64_t n, int ranks) {
    Sizes all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(local_shape({n}, {{Shard{0}, ranks, rank}})[0]);
    return all;
  };
  CHECK(sizes(5, 3) == Sizes{2, 2, 1});
  CHECK(sizes(1, 3) == Sizes{1, 0, 0});
  CHECK(sizes(5, 4) == Sizes{2, 2, 1, 0});
  CHECK(sizes(0, 2) == Sizes{0, 0});
  CHECK(sizes(8, 4) == Sizes{2, 2, 2, 2});
}

TEST_CASE("of a fused tensor each part is divided", "[plan]") {
  // q, k and v of four rows each; rank 1 of 2 has the lower half of each.
  CHECK(boxes_of({12, 8}, {8, 1}, {{Shard{0, 3}, 2, 1}}) ==
        std::vector{Box{{2, 0}, {2, 8}}, Box{{6, 0}, {2, 8}}, Box{{10, 0}, {2, 8}}});
  CHECK(local_shape({12, 8}, {{Shard{0, 3}, 2, 1}}) == Sizes{6, 8});
  // One rank has them all, as one.
  CHECK(boxes_of({12, 8}, {8, 1}, {{Shard{0, 3}, 1, 0}}) == std::vector{Box{{0, 0}, {12, 8}}});
  // And of what rank 1 has, the second half of the elements.
  CHECK(boxes_of({12, 8}, {8, 1}, {{Shard{0, 3}, 2, 1}, {FlatShard{0, 24}, 2, 1}}) ==
        std::vector{Box{{7, 0}, {1, 8}}, Box{{10, 0}, {2, 8}}});
}

TEST_CASE("flat ranges follow the order of memory", "[plan]") {
  // 2 x 3, stored column by column: elements 1 to 3 are the lower left one, and the column in the middle.
  CHECK(boxes_of({2, 3}, {1, 2}, {{FlatShard{0, 1}, 6, 1}}) == std::vector{Box{{1, 0}, {1, 1}}});
  CHECK(boxes_of({2, 3}, {1, 2}, {{FlatShard{-1, 3}, 1, 0}}) == std::vector{Box{{1, 0}, {1, 1}}, Box{{0, 1}, {2, 1}}});
}

TEST_CASE("placements that mean nothing are refused with what to write", "[plan]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THAT(message_of([] { local_shape({4}, {{Shard{1}, 2, 0}}); }),
             ContainsSubstring("weft: placement Shard(1) of a tensor with 1 dims"));
  CHECK_THAT(message_of([] { local_shape({4}, {{Shard{0, 3}, 2, 0}}); }),
             ContainsSubstring("Shard(0, 3 parts) of a dim of size 4"));
  CHECK_THAT(message_of([] { local_shape({4}, {{FlatShard{0, 2}, 2, 0}, {Shard{0}, 2, 0}}); }),
             ContainsSubstring("inside of a flat one"));
  CHECK(plan::describe(Placement(FlatShard{5, 4})) == "FlatShard(offset 5, chunk 4)");
  CHECK(plan::describe(Placement(Partial{})) == "Partial");
  CHECK(plan::describe(Placement(Replicate{})) == "Replicate");
}

TEST_CASE("boxes cover a range in order, as few as there can be: every range of every shape of up to three small dims",
          "[plan]") {
  for (std::size_t num_dims : {0, 1, 2, 3})
    for (auto const& shape : all_lists(num_dims, 4)) {
      auto const numel = numel_of(shape);
      Order order(num_dims);
      for (std::size_t dim = 0; dim < num_dims; ++dim) order[dim] = dim;
      for (int64_t begin = 0; begin <= numel; ++begin) {
        std::vector<std::size_t> fewest{0};  // by the number of elements from begin on
        for (int64_t end = begin; end <= numel; ++end) {
          if (end != begin) {
            fewest.push_back(static_cast<std::size_t>(end - begin));
            for (int64_t cut = begin; cut < end; ++cut)
              if (is_box(shape, cut, end))
                fewest.back() = std::min(fewest.back(), fewest[static_cast<std::size_t>(cut - begin)] + 1);
          }
          INFO("shape " << Catch::Detail::stringify(shape) << ", elements " << begin << " to " << end);
          auto const found = boxes(shape, {begin, end});
          Sizes wanted, covered;
          for (int64_t i = begin; i < end; ++i) wanted.push_back(i);
          bool inside = true;
          for (auto const& box : found) {
            inside = inside && box.offsets.size() == num_dims && box.sizes.size() == num_dims;
            for (std::size_t dim = 0; inside && dim < num_dims; ++dim)
              inside = box.offsets[dim] >= 0 && box.sizes[dim] >= 1 && box.offsets[dim] + box.sizes[dim] <= shape[dim];
            REQUIRE(inside);
            for (auto const element : elements_of({box}, shape, order)) covered.push_back(element);
          }
          REQUIRE(covered == wanted);
          REQUIRE(found.size() == fewest.back());
        }
      }
    }
}

TEST_CASE("boxes of shapes that are easily forgotten", "[plan]") {
  CHECK(boxes({}, {0, 1}) == std::vector{Box{{}, {}}});
  CHECK(boxes({}, {0, 0}).empty());
  CHECK(boxes({0}, {0, 0}).empty());
  CHECK(boxes({3, 0}, {0, 0}).empty());
  CHECK(boxes({5}, {1, 4}) == std::vector{Box{{1}, {3}}});
  CHECK(boxes({4, 3}, {2, 10}) == std::vector{Box{{0, 2}, {1, 1}}, Box{{1, 0}, {2, 3}}, Box{{3, 0}, {1, 1}}});
  CHECK(boxes({2, 3, 4, 5}, {0, 120}) == std::vector{Box{{0, 0, 0, 0}, {2, 3, 4, 5}}});
  CHECK(boxes({3, 3, 4, 5}, {1, 179}).size() == 7);
}

TEST_CASE("the compiler knows boxes", "[plan]") {
  STATIC_REQUIRE(boxes({4, 3}, {2, 10}).size() == 3);
  STATIC_REQUIRE(boxes({4, 3}, {2, 10})[1] == Box{{1, 0}, {2, 3}});
  STATIC_REQUIRE(boxes({}, {0, 1})[0].sizes.empty());
  STATIC_REQUIRE(plan::flat_range({5, 4}, 4, 1) == plan::Range{0, 3});
}
