// Files of the state directory that others may read, or a successor finds, at any moment.
#ifndef SUPERVISOR_CONFIG_REPLACE_FILE_H_
#define SUPERVISOR_CONFIG_REPLACE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// Whole or not at all: by PATH.new, which one process at a time may write. After an error the file
// is as it was. Not synchronised with the disk: what is told here is not worth a reboot.
absl::Status ReplaceFile(const std::string& path, std::string_view contents);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_REPLACE_FILE_H_
