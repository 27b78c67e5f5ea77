// A service's shared object in the process of a native worker: a fresh fork of `baton-driver`, with
// one thread. See host.md.
#ifndef LIB_NATIVE_NATIVE_OBJECT_H_
#define LIB_NATIVE_NATIVE_OBJECT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::native {

class NativeObject {
 public:
  // Loads the object at `path`, runs its initialisers, and checks that it fits. From here on exit()
  // runs only the handlers that the object has registered (including its static destructors), and
  // none of the executable's, which belong to the parent.
  //
  // An error names the path, what is wrong, and what to do.
  static absl::StatusOr<NativeObject> Load(const std::string& path);

  // Runs the object's main with `arguments` behind its path, and ends the process as returning from
  // main does. Call it once. Objects on the stack are not destroyed.
  [[noreturn]] void Run(const std::vector<std::string>& arguments) const;

 private:
  using Main = int (*)(int, char**, char**);
  NativeObject(const std::string& path, Main main) : path_(path), main_(main) {}

  std::string path_;
  Main main_;
};

}  // namespace baton::native

#endif  // LIB_NATIVE_NATIVE_OBJECT_H_
