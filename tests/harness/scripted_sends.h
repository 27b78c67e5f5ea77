// What the kernel refuses in passing, when a test says so.
#ifndef TESTS_HARNESS_SCRIPTED_SENDS_H_
#define TESTS_HARNESS_SCRIPTED_SENDS_H_

#include <cstddef>
#include <deque>

namespace baton::harness {

// While it lives the sends of the process through `fd` do as the steps say, one each, and then as
// they always do. Of a program that links this, sendmsg(2) is its own. One at a time.
class ScriptedSends {
 public:
  struct Step {
    int error;          // that it fails with; 0: it is sent
    size_t most_bytes;  // of what is sent; 0: all
  };
  static constexpr Step Failing(int error) { return {error, 0}; }
  static constexpr Step Sending(size_t most_bytes) { return {0, most_bytes}; }

  ScriptedSends(int fd, std::deque<Step> steps);
  ~ScriptedSends();
  ScriptedSends(const ScriptedSends&) = delete;
  ScriptedSends& operator=(const ScriptedSends&) = delete;

  bool done() const;  // all steps
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_SCRIPTED_SENDS_H_
