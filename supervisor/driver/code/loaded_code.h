// The code of drivers (driver_code.h) in a process that `baton-driver` has forked.
#ifndef SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_
#define SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_

#include "absl/status/statusor.h"
#include "supervisor/driver/code/driver_code.h"

namespace baton::driver_process {

// Loads the open file, unless the process has it, or had it before it was forked. An error says why
// the file cannot be used.
//
// `baton-driver` itself loads code that is proven, so that no fork has to load it and the twenty
// libraries that it needs, which takes 15 to 30 ms. It ignores an error, which each fork meets,
// too. Code that is on probation is loaded in forks alone.
absl::StatusOr<const BatonDriverCode*> LoadDriverCode(int descriptor);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_
