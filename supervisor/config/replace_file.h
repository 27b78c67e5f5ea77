// Files of the state directory that others may read, or a successor finds, at any moment.
#ifndef SUPERVISOR_CONFIG_REPLACE_FILE_H_
#define SUPERVISOR_CONFIG_REPLACE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// Whole or not at all, after a loss of power, too: by PATH.new, which one process at a time may
// write. After an error the file is as it was, or, where only the last step failed, new until power
// is lost. Waits for the disk, where the directory is on one (/run is not).
absl::Status ReplaceFile(const std::string& path, std::string_view contents);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_REPLACE_FILE_H_
