// launch/transfer.hpp -- values as bytes, between ranks and from a rank to its parent.
// In: numbers, enums, strings, tensors, vectors, arrays, optionals, pairs, tuples and maps of them, and structs that
// open themselves up by weft_visit. Out: bytes, and back.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ATen.h>

#include <weft/core/visit.hpp>

namespace weft::inline v0::launch {

template <class T>
struct Transfer {
  static constexpr bool possible = false;
};

/// True for values that can leave a rank: plain data, with tensors by value.
template <class T>
concept Transferable = Transfer<std::remove_cv_t<T>>::possible && std::movable<T>;

/// Reads a byte string from its front; running out of bytes is an error, never a read past the end.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  std::string_view take(std::size_t count);
  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::size_t size() { return static_cast<std::size_t>(number<std::uint64_t>()); }

 private:
  std::string_view bytes_;
};

template <class T>
void put_number(std::string& out, T value) {
  out.append(reinterpret_cast<char const*>(&value), sizeof value);
}
template <class T>
void put(std::string& out, T const& value) {
  Transfer<T>::put(out, value);
}
template <class T>
T get(Reader& in) {
  return Transfer<T>::get(in);
}

/// The bytes of a value.
template <Transferable T>
std::string to_bytes(T const& value) {
  std::string out;
  put(out, value);
  return out;
}
/// The value of such bytes.
template <Transferable T>
T from_bytes(std::string_view bytes) {
  Reader in(bytes);
  return get<T>(in);
}

template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
struct Transfer<T> {
  static constexpr bool possible = true;
  static void put(std::string& out, T value) { put_number(out, value); }
  static T get(Reader& in) { return in.number<T>(); }
};

template <>
struct Transfer<std::monostate> {
  static constexpr bool possible = true;
  static void put(std::string&, std::monostate) {}
  static std::monostate get(Reader&) { return {}; }
};

template <>
struct Transfer<std::string> {
  static constexpr bool possible = true;
  static void put(std::string& out, std::string const& value) {
    put_number<std::uint64_t>(out, value.size());
    out += value;
  }
  static std::string get(Reader& in) { return std::string(in.take(in.size())); }
};

// A function, so that a member that can't travel is one error, though it is both written and read.
template <class Member>
void require_member_travels() {
  static_assert(Transferable<Member>,
                "weft: a member that weft_visit hands on has to travel between processes: hand on numbers, strings, "
                "tensors, vectors, arrays, optionals, pairs, tuples and maps of them, or structs with weft_visit");
}

struct CountMembers {
  std::size_t* count;
  template <class Member>
  void operator()(Member&&) const {
    ++*count;
  }
};
struct PutMember {
  std::string* out;
  template <class Member>
  void operator()(Member&& member) const {
    using Value = std::remove_cvref_t<Member>;
    if constexpr (Transferable<Value>)
      launch::put<Value>(*out, member);
    else
      require_member_travels<Value>();
  }
};
struct GetMember {
  Reader* in;
  template <class Member>
  void operator()(Member& member) const {
    if constexpr (Transferable<Member>)
      member = launch::get<Member>(*in);
    else
      require_member_travels<Member>();
  }
};
[[noreturn]] void members_differ(std::size_t sent, std::size_t here);

/// A struct that opens itself up travels member by member, and is made by its default constructor.
template <core::UserVisited T>
  requires std::is_class_v<T> && std::default_initializable<T>
struct Transfer<T> {
  static constexpr bool possible = true;
  static void put(std::string& out, T const& value) {
    put_number<std::uint64_t>(out, members(value));
    core::for_each_part(value, PutMember{&out});
  }
  static T get(Reader& in) {
    T value{};
    auto const sent = in.size();
    if (auto const here = members(value); here != sent) members_differ(sent, here);
    weft_visit(value, GetMember{&in});
    return value;
  }

 private:
  static std::size_t members(T const& value) {
    std::size_t count = 0;
    core::for_each_part(value, CountMembers{&count});
    return count;
  }
};

/// A tensor arrives as a contiguous CPU tensor of the same shape, dtype and values.
template <>
struct Transfer<at::Tensor> {
  static constexpr bool possible = true;
  static void put(std::string& out, at::Tensor const& value) {
    put_number<std::int8_t>(out, value.defined() ? static_cast<std::int8_t>(value.scalar_type()) : std::int8_t{-1});
    if (!value.defined()) return;
    auto const dense = value.detach().to(at::kCPU).contiguous();
    put_number<std::uint64_t>(out, static_cast<std::uint64_t>(dense.dim()));
    for (auto size : dense.sizes()) put_number<std::int64_t>(out, size);
    out.append(static_cast<char const*>(dense.const_data_ptr()), dense.nbytes());
  }
  static at::Tensor get(Reader& in) {
    auto const type = in.number<std::int8_t>();
    if (type < 0) return {};
    std::vector<int64_t> sizes(in.size());
    for (auto& size : sizes) size = in.number<std::int64_t>();
    auto value = at::empty(sizes, at::TensorOptions(static_cast<at::ScalarType>(type)));
    auto const bytes = in.take(value.nbytes());
    if (!bytes.empty()) std::memcpy(value.data_ptr(), bytes.data(), bytes.size());
    return value;
  }
};

template <class T, class Allocator>
  requires Transferable<T>
struct Transfer<std::vector<T, Allocator>> {
  static constexpr bool possible = true;
  static void put(std::string& out, std::vector<T, Allocator> const& values) {
    put_number<std::uint64_t>(out, values.size());
    for (T const& value : values) launch::put<T>(out, value);
  }
  static std::vector<T, Allocator> get(Reader& in) {
    std::vector<T, Allocator> values;
    for (auto count = in.size(); count > 0; --count) values.push_back(launch::get<T>(in));
    return values;
  }
};

template <class T, std::size_t Count>
  requires Transferable<T>
struct Transfer<std::array<T, Count>> {
  static constexpr bool possible = true;
  static void put(std::string& out, std::array<T, Count> const& values) {
    for (T const& value : values) launch::put<T>(out, value);
  }
  static std::array<T, Count> get(Reader& in) {
    std::array<T, Count> values;
    for (T& value : values) value = launch::get<T>(in);
    return values;
  }
};

template <class T>
  requires Transferable<T>
struct Transfer<std::optional<T>> {
  static constexpr bool possible = true;
  static void put(std::string& out, std::optional<T> const& value) {
    put_number<bool>(out, value.has_value());
    if (value) launch::put<T>(out, *value);
  }
  static std::optional<T> get(Reader& in) {
    if (!in.number<bool>()) return std::nullopt;
    return launch::get<T>(in);
  }
};

template <Transferable First, Transferable Second>
struct Transfer<std::pair<First, Second>> {
  static constexpr bool possible = true;
  static void put(std::string& out, std::pair<First, Second> const& value) {
    launch::put<First>(out, value.first);
    launch::put<Second>(out, value.second);
  }
  static std::pair<First, Second> get(Reader& in) {
    auto first = launch::get<First>(in);
    return {std::move(first), launch::get<Second>(in)};
  }
};

template <Transferable... Parts>
struct Transfer<std::tuple<Parts...>> {
  static constexpr bool possible = true;
  static void put(std::string& out, std::tuple<Parts...> const& value) {
    std::apply([&](auto const&... parts) { (launch::put<std::decay_t<decltype(parts)>>(out, parts), ...); }, value);
  }
  static std::tuple<Parts...> get(Reader& in) {
    return std::tuple<Parts...>{launch::get<Parts>(in)...};
  }  // braces: left to right
};

template <Transferable Key, Transferable Value>
struct Transfer<std::map<Key, Value>> {
  static constexpr bool possible = true;
  static void put(std::string& out, std::map<Key, Value> const& values) {
    put_number<std::uint64_t>(out, values.size());
    for (auto const& [key, value] : values) {
      launch::put<Key>(out, key);
      launch::put<Value>(out, value);
    }
  }
  static std::map<Key, Value> get(Reader& in) {
    std::map<Key, Value> values;
    for (auto count = in.size(); count > 0; --count) {
      auto key = launch::get<Key>(in);
      values.emplace(std::move(key), launch::get<Value>(in));
    }
    return values;
  }
};

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/transfer.ipp>
#endif
