// The memfd of hostile clients of a NIC, whose mapping in the NIC changes between its loads
// (shared_reads.h).
#ifndef TESTS_FUZZ_HOSTILE_MEMORY_H_
#define TESTS_FUZZ_HOSTILE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "tests/lib/nic/harness.h"

namespace baton::fuzz {

class HostileMemory {
 public:
  static constexpr uint64_t kPage = 4096;
  // No other file of the process is so long, so the NIC's mapping is known by its length.
  static constexpr uint64_t kBytes = 9 * kPage;
  // Nothing may change in the last page, unless an object that the NIC has granted lies there.
  static constexpr uint64_t kCanary = kBytes - kPage;

  HostileMemory();

  // Clears it, for another input.
  void Clear();
  int fd() const { return file_.fd(); }
  uint8_t* At(uint64_t offset) const { return file_.begin() + offset; }

  // Watches the NIC's loads of it from now on, where it is mapped already.
  void Watch() const;
  // The NIC has made an object of these bytes.
  void NoteObject(uint64_t offset, uint64_t bytes);
  // Aborts if the NIC has written where no object lies.
  void Check() const;

 private:
  const nic::SharedFile file_;
  bool watched_ = true;  // the last page is nobody's
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_HOSTILE_MEMORY_H_
