// The release of a program, which its file tells without being run. Each program that links
// lib/base has an ELF note with it.
#ifndef LIB_BASE_RELEASE_NOTE_H_
#define LIB_BASE_RELEASE_NOTE_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton {

// Returns the release of the program in `file`, which is open for reading. kNotFound: the file does
// not tell it, as a script, or a program of a release that had no note. Reads some kilobytes.
absl::StatusOr<std::string> ReleaseOfFile(int file);

}  // namespace baton

#endif  // LIB_BASE_RELEASE_NOTE_H_
