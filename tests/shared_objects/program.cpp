// program.cpp -- one program, two libraries with weft inside, one autograd engine: program local|global FIRST.so
// SECOND.so
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <unistd.h>

#include <ATen/ATen.h>

namespace {

using RunPart = void(at::Tensor const&, void (*)(at::Tensor&), at::Tensor&, int&);
using IsCut = bool(at::Tensor const&, bool);
using WriteFile = void(char const*, void (*)(char const*));

void require(bool holds, char const* what) {
  if (holds) return;
  std::fprintf(stderr, "expected: %s\n", what);
  std::exit(1);
}
struct Library {
  Library() = default;
  Library(char const* path, int mode) {
    void* const library = dlopen(path, RTLD_NOW | mode);
    if (!library) std::fprintf(stderr, "%s\n", dlerror());
    require(library != nullptr, "the library loads");
    run = reinterpret_cast<RunPart*>(dlsym(library, "run_part"));
    is_cut = reinterpret_cast<IsCut*>(dlsym(library, "is_cut"));
    write_file = reinterpret_cast<WriteFile*>(dlsym(library, "write_file"));
  }
  RunPart* run = nullptr;
  IsCut* is_cut = nullptr;
  WriteFile* write_file = nullptr;
};

Library first, second;
thread_local int packed_inside = 0;

void nothing(at::Tensor&) {}
void the_other(at::Tensor& t) {
  at::Tensor result;
  second.run(t, &nothing, result, packed_inside);
  t = result;
}

at::Tensor plain(at::Tensor const& x, bool nested) {
  auto y = x.exp();
  if (nested) y = plain(y, false);
  return y.sin().sin().exp();
}

/// Both libraries, one inside of the other's scope and one after it.
void use_both() {
  auto const x = at::arange(1, 4, at::kDouble).set_requires_grad(true), y = x.detach().clone().set_requires_grad(true);
  packed_inside = 0;
  int packed = 0, packed_after = 0;
  at::Tensor result, after;
  first.run(x, &the_other, result, packed);
  require(packed == 3, "the scope around sees its own exp, the argument of its checkpoint, and exp");
  require(packed_inside == 3, "and the scope inside, of the other library, its own three");
  second.run(x, &nothing, after, packed_after);
  require(packed_after == 3 && packed == 3, "a scope that has ended sees nothing");
  x.exp();
  require(packed == 3 && packed_after == 3, "nor does one see what is outside of all");
  (result.sum() + after.sum()).backward();
  (plain(y, true).sum() + plain(y, false).sum()).backward();
  require(x.grad().equal(y.grad()), "the gradient of the plain functions");
}

/// What is known of parameters, and the names of files under way, are one for the process.
void share_what_is_known() {
  auto const parameter = at::ones({2});
  require(!second.is_cut(parameter, false) && first.is_cut(parameter, true) && second.is_cut(parameter, false),
          "a parameter cut by one library is known to the other");
  auto const folder = std::filesystem::temp_directory_path() / ("weft-two-libraries-" + std::to_string(getpid()));
  require(std::filesystem::create_directory(folder), "a folder");
  auto const file = (folder / "file").string();
  first.write_file(file.c_str(), [](char const* same) { second.write_file(same, [](char const*) {}); });
  std::filesystem::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 4, "local|global FIRST.so SECOND.so");
  int const mode = std::strcmp(argv[1], "local") == 0 ? RTLD_LOCAL : RTLD_GLOBAL;
  first = Library(argv[2], mode);
  second = Library(argv[3], mode);
  share_what_is_known();
  use_both();
  std::thread others[] = {std::thread([] {
                            for (int i = 0; i < 50; ++i) use_both();
                          }),
                          std::thread([] {
                            for (int i = 0; i < 50; ++i) use_both();
                          })};
  for (auto& other : others) other.join();
  use_both();
}
