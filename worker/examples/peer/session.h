// Runs a LoadGenerator: its event loop, the commands on an input, answers on standard output.
//
// Commands, one per line: "mark NAME", "settle", "settle active", "rate N", "stop". Answers, each
// one line of JSON:
//   {"event":"connected","connections":N}     every connection is established
//   {"window":"NAME","max_silence_us":…}      to mark: the window since the last mark
//   {"settled":true,"after_us":…}             to settle: every connection, or active one, was
//   answered since
//   {"rate":N}                                to rate
//   {"final":true,"ok":…}                     at the end
#ifndef WORKER_EXAMPLES_PEER_SESSION_H_
#define WORKER_EXAMPLES_PEER_SESSION_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "worker/examples/peer/load_generator.h"

namespace baton::peer {

struct SessionOptions {
  double seconds = 0;          // 0: until "stop", or the end of the input
  bool read_commands = false;  // from `command_fd`, whose end stops the session too
  int command_fd = 0;
  bool json = false;
  bool reconnect = false;
  uint32_t drain_timeout_ms = 10'000;
};

class Session {
 public:
  Session(LoadGenerator* generator, const SessionOptions& options)
      : generator_(generator), options_(options) {}

  // Runs to the end. Returns true if everything was as it has to be. An error is this program's or
  // the device's, not the service's.
  absl::StatusOr<bool> Run();

 private:
  absl::Status OpenFiles();
  absl::Status Loop();
  absl::Status WaitForWork(int timeout_ms);
  void Report(uint64_t now);
  void ReadCommands();
  void OnCommand(const std::string& line);
  void Stop(uint64_t now);
  void Print(const std::string& line) const;
  void Print(const nlohmann::ordered_json& json) const;  // on one line

  LoadGenerator* const generator_;
  const SessionOptions options_;
  FileDescriptor epoll_;
  FileDescriptor timer_;
  std::string input_;  // an incomplete line
  bool input_open_ = false;
  bool announced_ = false;     // it was printed that all are connected
  uint64_t settle_start_ = 0;  // 0: no settle is under way
  uint64_t stopped_at_ = 0;    // 0: not yet
};

}  // namespace baton::peer

#endif  // WORKER_EXAMPLES_PEER_SESSION_H_
