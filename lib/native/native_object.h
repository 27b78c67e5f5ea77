// A service's shared object in the process of a native worker: a fresh fork of the keeper, with one
// thread. See host.md.
#ifndef LIB_NATIVE_NATIVE_OBJECT_H_
#define LIB_NATIVE_NATIVE_OBJECT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::native {

class NativeObject {
 public:
  // Loads the object at `path`, which runs its initialisers, and finds out whether it fits. From
  // here on exit() runs what the object has registered for the process's end (its static
  // destructors, too), and nothing that was registered before: the executable's is its parent's.
  //
  // The text of an error names the path, what is wrong, and what to do.
  static absl::StatusOr<NativeObject> Load(const std::string& path);

  // Runs the object's main with `arguments` behind its path, and ends the process as a program
  // whose main returns does. Call it once, with nothing on the stack that has to be destroyed.
  [[noreturn]] void Run(const std::vector<std::string>& arguments) const;

 private:
  using Main = int (*)(int, char**, char**);
  NativeObject(const std::string& path, Main main) : path_(path), main_(main) {}

  std::string path_;
  Main main_;
};

}  // namespace baton::native

#endif  // LIB_NATIVE_NATIVE_OBJECT_H_
