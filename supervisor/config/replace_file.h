// For files of the state directory that others may read, or a successor may find, at any moment.
#ifndef SUPERVISOR_CONFIG_REPLACE_FILE_H_
#define SUPERVISOR_CONFIG_REPLACE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// Replaces the file as a whole or not at all, also across a loss of power. Uses PATH.new, which one
// process at a time may write. After an error the file is unchanged, or, if only the last step
// failed, new until power is lost. Waits for the disk, if the directory is on one (/run is not).
absl::Status ReplaceFile(const std::string& path, std::string_view contents);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_REPLACE_FILE_H_
