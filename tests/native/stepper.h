// A forked process of this program that runs to a chosen function and then instruction by
// instruction, by ptrace. Ends with its process, or when that is killed.
#ifndef TESTS_NATIVE_STEPPER_H_
#define TESTS_NATIVE_STEPPER_H_

#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>

namespace baton::native {

// Where a function begins; the same in all processes that are forked from this one.
template <typename Function>
uintptr_t CodeOf(Function function) {
  // A pointer to a member function that is not virtual has it first (Itanium C++ ABI, 2.3).
  static_assert(sizeof(function) >= sizeof(uintptr_t));
  uintptr_t address;
  std::memcpy(&address, &function, sizeof(address));
  return address;
}

class Stepper {
 public:
  // `process` is a child, and sleeps; it does not run before it is told to.
  explicit Stepper(pid_t process);
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  // Runs until it is about to execute one of these instructions, once more if it is there. Which
  // one it is; 0: it has ended, or does not get there in time.
  uintptr_t RunTo(std::initializer_list<uintptr_t> instructions);
  // Executes `instructions`; a system call is one. False: it has ended.
  bool Step(uint64_t instructions);

  // Lets it run, by itself from now on.
  void Detach();

  // Returns the address of the next instruction.
  uintptr_t position() const;

 private:
  bool Stopped(bool bounded);
  void Resume(int request);
  uint8_t Exchange(uintptr_t address, uint8_t code);

  const pid_t process_;
  int status_ = 0;
};

// The name of the function that has `address` in this process, or of its library.
std::string FunctionAt(uintptr_t address);

}  // namespace baton::native

#endif  // TESTS_NATIVE_STEPPER_H_
