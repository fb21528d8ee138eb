// checkpoints/weights.hpp -- a file's tensors meet a model's names.
// In: named tensors and the model's rows. Out: every row filled, or an error that lists what does not fit, before
// anything was changed.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <weft/checkpoints/safetensors.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::checkpoints {

// What a weight is filled into. Any row with these three members will do, for instance a parameter table's.
struct Weight {
  std::string name;
  std::vector<std::string> aliases;  // other names of the same tensor (tied weights)
  at::Tensor tensor;
};
template <class Row>
concept WeightRow = requires(Row const& row) {
  std::string_view(row.name);
  row.aliases.begin();
  at::Tensor(row.tensor);
};

// Whether a tensor is meant; empty: all are. `value` is the file's, or the model's where the file has none or is
// written.
using WeightFilter = std::function<bool(std::string_view name, at::Tensor const& value)>;

struct LoadOptions {
  bool strict = true;          // missing and unexpected names are errors; otherwise they are reported
  bool convert_dtype = false;  // a file in fp32 may fill a model in bf16, and the reverse; otherwise that is an error
  WeightFilter filter{};       // names for which it is false are not loaded, and neither missing nor unexpected
};
struct SaveOptions {
  WeightFilter filter{};  // tensors for which it is false are not written
};

struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;     // the model has it, the file does not
  std::vector<std::string> unexpected;  // the file has it, the model does not
  std::vector<std::string> converted;   // loaded with another dtype, as asked
  std::vector<std::string> filtered;    // the file has it, the filter leaves it there
};

std::string listed(std::vector<std::string> const& names);

// Fills rows from tensors. Shapes must agree always, dtypes unless convert_dtype.
template <WeightRow Row>
LoadReport load_weights(std::vector<Row> const& rows, NamedTensors const& saved, LoadOptions const& options = {},
                        std::string_view source = "the given tensors") {
  std::unordered_map<std::string_view, at::Tensor const*> by_name;
  for (auto const& [name, tensor] : saved)
    if (!by_name.emplace(name, &tensor).second)
      fail<CheckpointError>("weft: ", source, ": tensor ", name, " is there twice");

  LoadReport report;
  std::unordered_set<std::string_view> left_out;
  for (auto const& [name, tensor] : saved)
    if (options.filter && !options.filter(name, tensor)) {
      left_out.insert(name);
      by_name.erase(name);
      report.filtered.push_back(name);
    }
  std::vector<std::string> misfits;
  std::vector<std::pair<Row const*, at::Tensor const*>> plan;
  std::unordered_set<std::string_view> wanted;
  for (Row const& row : rows) {
    std::string_view found_as;
    at::Tensor const* found = nullptr;
    auto look_up = [&](std::string_view name) {
      wanted.insert(name);
      auto const hit = by_name.find(name);
      if (hit == by_name.end()) return;
      if (found == nullptr) {
        found = hit->second;
        found_as = name;
      } else if (!found->equal(*hit->second)) {
        misfits.push_back(
            core::message(found_as, " and ", name, " are one tensor in the model but differ in the file"));
      }
    };
    look_up(row.name);
    for (auto const& alias : row.aliases) look_up(alias);
    if (found == nullptr) {
      bool const is_left_out = std::any_of(row.aliases.begin(), row.aliases.end(),
                                           [&](auto const& alias) { return left_out.contains(alias); }) ||
                               left_out.contains(row.name);
      if (!is_left_out && (!options.filter || options.filter(row.name, row.tensor)))
        report.missing.emplace_back(row.name);
      continue;
    }
    at::Tensor const& target = row.tensor;
    if (target.sizes() != found->sizes()) {
      misfits.push_back(
          core::message(row.name, " has shape ", found->sizes(), " in the file and ", target.sizes(), " in the model"));
    } else if (at::has_internal_overlap(target) == at::MemOverlap::Yes) {
      misfits.push_back(core::message(
          row.name, " is an expanded tensor, whose elements share memory (contiguous() makes one of its own)"));
    } else if (target.scalar_type() != found->scalar_type()) {
      if (options.convert_dtype)
        report.converted.emplace_back(row.name);
      else
        misfits.push_back(core::message(row.name, " has dtype ", found->scalar_type(), " in the file and ",
                                        target.scalar_type(),
                                        " in the model (LoadOptions{.convert_dtype = true} converts)"));
    }
    report.loaded.emplace_back(row.name);
    plan.emplace_back(&row, found);
  }
  for (auto const& [name, tensor] : saved)
    if (!wanted.contains(name) && !left_out.contains(name)) report.unexpected.push_back(name);

  bool const names_fit = report.missing.empty() && report.unexpected.empty();
  if (!misfits.empty() || (options.strict && !names_fit)) {
    std::string why;
    auto add = [&why](std::string_view what, std::vector<std::string> const& names) {
      if (!names.empty()) why += core::message(why.empty() ? "" : "; ", what, listed(names));
    };
    if (options.strict) {
      add("missing from it: ", report.missing);
      add("unexpected in it: ", report.unexpected);
    }
    add("", misfits);
    fail<CheckpointError>("weft: ", source, " does not fit the model: ", why, ". Nothing was loaded",
                          options.strict && !names_fit ? "; LoadOptions{.strict = false} takes what fits by name" : "");
  }
  at::NoGradGuard no_grad;
  for (auto const& [row, tensor] : plan) {
    at::Tensor target = row->tensor;
    target.copy_(*tensor);
  }
  return report;
}

template <WeightRow Row>
LoadReport load_weights(std::vector<Row> const& rows, std::string const& path, LoadOptions const& options = {}) {
  return load_weights(rows, load_safetensors(path), options, path);
}

// One tensor per row, under its first name: tied weights are there once.
template <WeightRow Row>
void save_weights(std::string const& path, std::vector<Row> const& rows, SaveOptions const& options = {},
                  std::map<std::string, std::string> metadata = {{"format", "pt"}}) {
  NamedTensors tensors;
  tensors.reserve(rows.size());
  for (Row const& row : rows)
    if (!options.filter || options.filter(row.name, row.tensor)) tensors.emplace_back(row.name, row.tensor);
  save_safetensors(path, tensors, std::move(metadata));
}

}  // namespace weft::checkpoints

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/checkpoints/weights.ipp>
#endif
