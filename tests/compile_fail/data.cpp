// torch
// What setup_dataloader takes as a dataset, and what it can make batches of.
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <weft/data/loader.hpp>

struct Numbers {};
struct Stateful : torch::data::datasets::BatchDataset<Stateful, std::optional<int>, std::size_t> {
  std::optional<int> get_batch(std::size_t) override { return std::nullopt; }
  std::optional<std::size_t> size() const override { return std::nullopt; }
};
struct Dataset : torch::data::datasets::Dataset<Dataset> {
  torch::data::Example<> get(std::size_t) override { return {}; }
  std::optional<std::size_t> size() const override { return 1; }
};
struct MovableStream {
  std::optional<int> next() { return std::nullopt; }
  MovableStream(MovableStream&&) = default;
};
struct Stream {
  std::optional<int> next() { return std::nullopt; }
};

struct Closed {
  at::Tensor image;
};
struct Labelled {
  at::Tensor image;
  int label;
};
template <class F>
void weft_visit(Labelled& sample, F&& f) {
  f(sample.image), f(sample.label);
}
struct Batch {
  at::Tensor images, labels;
};
template <class F>
void weft_visit(Batch& batch, F&& f) {
  f(batch.images), f(batch.labels);
}
struct Sample {
  using Batch = ::Batch;
  at::Tensor image;
  int label;
};
template <class F>
void weft_visit(Sample& sample, F&& f) {
  f(sample.image), f(sample.label);
}

#if defined( \
    CASE_no_dataset)  // expect-error: weft: setup_dataloader: pass a dataset by value: with size() and get(index), operator[] or get_batch(indices)
constexpr bool fits = weft::data::assert_dataset<Numbers>();
#elif defined( \
    CASE_stateful_dataset)  // expect-error: not a stateful one of torch::data's, which cannot be cut over ranks
constexpr bool fits = weft::data::assert_dataset<Stateful>();
#elif defined(CASE_stream_that_cannot_start_again)  // expect-error: each must be copyable or readable when const
constexpr bool fits = weft::data::assert_dataset<MovableStream>();
#elif defined( \
    CASE_samples_that_nobody_can_look_into)  // expect-error: weft: collate: samples of this type cannot be stacked: write weft_visit(Sample&, f) next to it
auto batch = weft::data::collate(std::vector<Closed>(2));
#elif defined( \
    CASE_a_number_stays_no_number)  // expect-error: weft: collate: a struct that is its own batch holds tensors
auto batch = weft::data::collate(std::vector<Labelled>(2));
#else                               // control
constexpr bool fits = weft::data::assert_dataset<Dataset>() && weft::data::assert_dataset<Stream>() &&
                      weft::data::assert_dataset<std::vector<Sample>>();
Batch batch = weft::data::collate(std::vector<Sample>(2));
#endif
