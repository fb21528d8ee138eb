// data/dataset.ipp -- definitions of data/dataset.hpp.
#pragma once

#include <weft/data/dataset.hpp>

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::data::detail {

WEFT_INLINE std::string text_of_exception() {
  try {
    throw;
  } catch (c10::Error const& error) {
    return error.what_without_backtrace();
  } catch (std::exception const& error) {
    return error.what();
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

WEFT_INLINE std::string list_of(std::vector<std::size_t> const& indices) {
  std::string text = indices.size() == 1 ? "sample " : "samples ";
  for (std::size_t i = 0; i < indices.size() && i < 16; ++i) text += (i ? ", " : "") + std::to_string(indices[i]);
  return indices.size() > 16 ? text + ", ..." : text;
}

}  // namespace weft::data::detail
