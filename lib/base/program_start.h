// Prepares the start of another program with execve(2) or posix_spawn(3).
#ifndef LIB_BASE_PROGRAM_START_H_
#define LIB_BASE_PROGRAM_START_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// The descriptor of its lock, by which the next batond finds a service's driver. For that process
// alone.
inline constexpr char kLockVariable[] = "BATON_LOCK_FD";
// The reading end of a pipe whose end tells it that batond was stopped for good. Likewise.
inline constexpr char kStayVariable[] = "BATON_STAY_FD";

// A batond that executes another program tells it by these that it is on trial, or why the one
// before it was given up, and where the program is that can be replaced. For batond alone.
inline constexpr char kTrialVariable[] = "BATON_ON_TRIAL";
inline constexpr char kGivenUpVariable[] = "BATON_GIVEN_UP";
inline constexpr char kProgramVariable[] = "BATON_PROGRAM";

// The descriptors of a keeper: a socket for its orders to `baton-driver`, one for the news that
// `baton-driver` reports, and the network namespace of batond, if the service has another. For that
// keeper alone.
inline constexpr char kOrdersVariable[] = "BATON_ORDERS_FD";
inline constexpr char kNewsVariable[] = "BATON_NEWS_FD";
inline constexpr char kNetworkVariable[] = "BATON_NETWORK_FD";

// The descriptor through which the process that started us is told. For us alone.
inline constexpr char kReadyVariable[] = "BATON_READY_FD";
// Tells the process that started us that we serve. Nobody listening is no error.
void TellReady();

// Returns the descriptor whose number `variable` of the environment has. It is close-on-exec from
// now on. None: there is no such variable.
FileDescriptor GivenDescriptor(const char* variable);

// A file in memory with `bytes`, at its beginning: standard input of any length for a program, with
// nobody who has to write it as a pipe would need.
absl::StatusOr<FileDescriptor> MemoryFileWith(std::string_view bytes);

// The array that execve takes, into `strings`, which outlive it.
std::vector<char*> PointersTo(std::vector<std::string>& strings);

// Returns the directory of the program that runs, where Baton's other programs are, too.
std::string OwnDirectory();

// Whether a variable of the environment ("NAME=value") was meant for batond, or one child of it,
// alone, and is not passed on.
bool IsForOneProcess(std::string_view variable);

}  // namespace baton

#endif  // LIB_BASE_PROGRAM_START_H_
