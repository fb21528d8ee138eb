// fabric/data_loading.hpp -- data for this rank.
// In: datasets, or loaders that know no ranks yet. Out: loaders of this rank's share, whose batches are on its device.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <weft/core/error.hpp>
#include <weft/data/loader.hpp>
#include <weft/data/move.hpp>
#include <weft/model/model.hpp>

namespace weft::inline v0::fabric {

/// The part of Fabric that loads data. No call communicates: what a rank sees follows from the seed, the epoch and its
/// number.
template <class Derived>
class DataLoading {
 public:
  /// Batches of this rank's share of the dataset, on its device. `batch_size` is per rank. The seed is
  /// seed_everything's unless the options say one. collate(std::vector<Sample>) makes a batch, on the workers; absent:
  /// data/collate.hpp's.
  template <class Dataset, class Collate = data::Stacked>
  auto setup_dataloader(Dataset dataset, data::LoaderOptions options = {}, Collate collate = {}) {
    if constexpr (data::assert_dataset<Dataset>())
      return place(data::Loader<Dataset, Collate>(std::move(dataset), std::move(options), std::move(collate)));
    else
      return std::monostate();  // refused above; not void, which would be a second error
  }
  /// The same of a loader that was made before there were ranks.
  template <class Dataset, class Collate>
  auto setup_dataloader(data::Loader<Dataset, Collate> loader) {
    return place(std::move(loader));
  }
  /// Several at once: auto [training, validation] = fabric.setup_dataloaders(weft::data::Loader(set, {.batch_size = 8,
  /// .shuffle = true}), ...).
  template <class... Loaders>
  auto setup_dataloaders(Loaders... loaders) {
    static_assert(sizeof...(Loaders) > 0 && (data::is_loader_v<Loaders> && ...),
                  "weft: setup_dataloaders: pass loaders, each with its options: weft::data::Loader(dataset, "
                  "{.batch_size = 8}); for one dataset write setup_dataloader(dataset, options)");
    return std::tuple{setup_dataloader(std::move(loaders))...};
  }

  /// Tensors, and containers and structs of them (core/visit.hpp), on this rank's device; a module that is not set up
  /// moves there itself.
  template <class T>
  T to_device(T value) const {
    auto const device = fabric().session().device;
    if constexpr (std::is_void_v<model::impl_of_t<T>>) {
      return data::move_to(std::move(value), device);
    } else {
      model::shared_module("to_device", value)->to(device);
      return value;
    }
  }

 private:
  friend Derived;
  DataLoading() = default;

  Derived const& fabric() const { return static_cast<Derived const&>(*this); }

  template <class Dataset, class Collate>
  auto place(data::Loader<Dataset, Collate> loader) {
    auto const& here = fabric().session();
    auto const& share = fabric().mesh().data();  // ranks along other axes work on the same batches
    if (loader.place().num_ranks != 1)
      fail<ConfigurationError>("weft: setup_dataloader: this loader is rank ", loader.place().rank, "'s of ",
                               loader.place().num_ranks, " already; pass it once");
    auto const& made_for = loader.place();
    auto transport = made_for.device.is_cuda() && made_for.device != here.device
                         ? nullptr
                         : made_for.transport;  // one for another GPU is of no use here
    return std::move(loader).placed({static_cast<std::size_t>(share.size()), static_cast<std::size_t>(share.coordinate),
                                     here.device, std::move(transport)},
                                    here.seed);
  }
};

}  // namespace weft::fabric
