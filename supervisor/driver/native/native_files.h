#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_FILES_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_FILES_H_

#include <vector>

#include "lib/arena/arena.h"

namespace baton::driver_process {

// The descriptors of a native service that must stay open when its driver dies (adoption.h).
struct NativeFiles {
  const arena::Arena* arena = nullptr;
  std::vector<int> device;  // whose objects live as long as one of these is open
  int connection_manager = -1;
  int driver_wake = -1;    // eventfd: there are orders
  int news = -1;           // datagrams from workers, our end
  std::vector<int> wakes;  // eventfds, by worker slot
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_FILES_H_
