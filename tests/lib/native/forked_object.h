// Loads and runs an object in a fork of the test, as a fork of `baton-driver` does.
#ifndef TESTS_LIB_NATIVE_FORKED_OBJECT_H_
#define TESTS_LIB_NATIVE_FORKED_OBJECT_H_

#include <string>
#include <vector>

namespace baton::native::testing {

struct Ended {
  int status = 0;      // as waitpid(2) tells it
  std::string output;  // of both standard streams, or why it was not loaded
};

inline constexpr int kNotLoaded = 121;  // exit status

// Returns the path of an object in this package.
std::string PathOf(const std::string& object);

// Waits for its end. The test has one thread.
Ended RunObject(const std::string& path, const std::vector<std::string>& arguments);

}  // namespace baton::native::testing

#endif  // TESTS_LIB_NATIVE_FORKED_OBJECT_H_
