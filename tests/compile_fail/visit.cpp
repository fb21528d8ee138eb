// What for_each_leaf walks.
#include <vector>

#include <weft/core/visit.hpp>

struct Leaf {};
struct Open {
  Leaf leaf;
};
struct Closed {
  Leaf leaf;
};
template <class F>
void weft_visit(Open& open, F&& f) {
  f(open.leaf);
}
inline constexpr auto count = [](Leaf const&) {};

#if defined(CASE_closed)  // expect-error: write weft_visit(T&, f) next to T
void walk(Closed& value) { weft::for_each_leaf<Leaf>(value, count); }
#elif defined(CASE_closed_inside)  // expect-error: write weft_visit(T&, f) next to T
void walk(std::vector<Closed>& value) { weft::for_each_leaf<Leaf>(value, count); }
#elif defined(CASE_raw_pointer)    // expect-error: write weft_visit(T&, f) next to T
void walk(Leaf* value) { weft::for_each_leaf<Leaf>(value, count); }
#else                              // control
void walk(std::vector<Open> const& value) { weft::for_each_leaf<Leaf>(value, count); }
#endif
