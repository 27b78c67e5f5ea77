// Prepares the start of another program with execve(2) or posix_spawn(3).
#ifndef LIB_BASE_PROGRAM_START_H_
#define LIB_BASE_PROGRAM_START_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// Environment variables for one process alone, which does not pass them on (IsForOneProcess).

// The descriptor of a driver's lock, by which the next batond finds the driver.
inline constexpr char kLockVariable[] = "BATON_LOCK_FD";
// The descriptor of control's lock. A batond that takes in the control of the batond before it
// names it so. A former release names it as a driver's, and its control ends with it.
inline constexpr char kControlLockVariable[] = "BATON_CONTROL_LOCK_FD";
// The reading end of a pipe. Its end tells a driver or control that batond was stopped for good.
inline constexpr char kStayVariable[] = "BATON_STAY_FD";

// A batond that executes another program tells it with these that it is on probation and for how
// long, or why the program before it was given up, and the path of the program that can be
// replaced.
inline constexpr char kProbationVariable[] = "BATON_ON_TRIAL";
inline constexpr char kProbationTimeVariable[] = "BATON_PROBATION_MS";
inline constexpr char kGivenUpVariable[] = "BATON_GIVEN_UP";
inline constexpr char kProgramVariable[] = "BATON_PROGRAM";

// baton-init sets them for batond. The first says that baton-init listens at NOTIFY_SOCKET, where
// it heeds signs of life and keeps no descriptors. The second says how the batond before ended.
inline constexpr char kInitVariable[] = "BATON_INIT";
inline constexpr char kFormerEndVariable[] = "BATON_FORMER_END";

// The descriptors of a keeper: a socket for its orders to `baton-driver`, one for the news that
// `baton-driver` reports, and the network namespace of batond, if the service has another.
inline constexpr char kOrdersVariable[] = "BATON_ORDERS_FD";
inline constexpr char kNewsVariable[] = "BATON_NEWS_FD";
inline constexpr char kNetworkVariable[] = "BATON_NETWORK_FD";

// A program that one of Baton's programs starts, or code that it loads. Its file lies beside that
// program's. Whoever starts that program may have the file open, and hands it over in the variable.
struct HelperProgram {
  const char* name;
  const char* variable;
};
inline constexpr HelperProgram kNicProgram{"baton-nic", "BATON_NIC_FD"};
inline constexpr HelperProgram kDriverCode{"libbaton-driver.so", "BATON_DRIVER_CODE_FD"};
inline constexpr HelperProgram kLaunchProgram{"baton-launch", "BATON_LAUNCHER_FD"};
using HelperPrograms = absl::Span<const HelperProgram>;  // lives for ever
inline constexpr HelperProgram kDriverHelpers[] = {kNicProgram, kDriverCode};
inline constexpr HelperProgram kKeeperHelpers[] = {kLaunchProgram};

// The descriptor into which TellReady() writes.
inline constexpr char kReadyVariable[] = "BATON_READY_FD";
enum class Readiness : char {
  kServes = 1,
  kOutlivesBatond = 2,  // it serves, goes on when batond dies, and finds the next batond
};
// Tells the process that started this one that it serves now. It is no error if none listens.
void TellReady(Readiness readiness = Readiness::kServes);

// Returns the descriptor whose number `variable` of the environment has. It is close-on-exec from
// now on. It is empty if there is no such variable.
FileDescriptor GivenDescriptor(const char* variable);

// Returns a memory file that holds `bytes`, positioned at its beginning. It can be a program's
// standard input of any length; a pipe would need a process that goes on writing.
absl::StatusOr<FileDescriptor> MemoryFileWith(std::string_view bytes);

// Returns the array that execve takes. It points into `strings`, which the caller keeps as long.
std::vector<char*> PointersTo(std::vector<std::string>& strings);

// Returns the directory of the program that runs, where Baton's other programs are, too.
std::string OwnDirectory();

// Opens the helper, or takes the open file that was handed over. Call it once: the file stays open
// until this process ends. Returns OpenFilePath() of it, or its path if it cannot be opened.
std::string OpenHelper(const HelperProgram& helper);

// Returns a path of a file that this process has open. It leads to this file whatever takes its
// place. SpawnPlan (supervisor/driver/workers/spawn_plan.h) runs it.
std::string OpenFilePath(int descriptor);
// Returns the descriptor, if `path` is what OpenFilePath returned; else -1.
int OpenFileOf(std::string_view path);
// Returns where the open file is, or was before it was replaced.
std::string PlaceOfOpenFile(int descriptor);

// Returns true if a variable of the environment ("NAME=value") is for batond or one other process
// alone, and is not passed on.
bool IsForOneProcess(std::string_view variable);

}  // namespace baton

#endif  // LIB_BASE_PROGRAM_START_H_
