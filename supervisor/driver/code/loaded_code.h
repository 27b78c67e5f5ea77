// The code of drivers (driver_code.h) in a process that `baton-driver` has forked.
#ifndef SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_
#define SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_

#include "absl/status/statusor.h"
#include "supervisor/driver/code/driver_code.h"

namespace baton::driver_process {

// Loads the open file. Call it once. An error says why the file cannot be used.
absl::StatusOr<const BatonDriverCode*> LoadDriverCode(int descriptor);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_CODE_LOADED_CODE_H_
