// Records the changes that operators ask for, in the event log and in a file that outlives this
// process. The file has one v1.Event in JSON a line, of kind "change". Each change is written
// twice: before it is tried, and when its outcome is known. Each line has a hash of itself and the
// one before it (audit_chain.h). The log has that hash, too. The file is bounded: when it is full
// it becomes PATH.1, that becomes PATH.2, and so on. To keep more, follow WatchEvents or the log.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_AUDIT_TRAIL_H_
#define SUPERVISOR_CONTROL_AUDIT_TRAIL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/types.pb.h"
#include "supervisor/control/event_log.h"

namespace baton {

class AuditTrail {
 public:
  static constexpr uint64_t kMaxFileBytes = 4 << 20;

  // Reads the last two files, puts their records into `events`, which must outlive the trail, and
  // goes on after them. Logs a file that cannot be read or written, and goes on, because what
  // operators do then matters more than its record. `unix_micros` gives the time of a record, and
  // may be stepped back.
  AuditTrail(std::string path, EventLog* events, uint64_t max_file_bytes = kMaxFileBytes,
             std::function<int64_t()> unix_micros = UnixMicroseconds);

  // Begin records a change that is about to be tried, and sets its number. End records its outcome.
  // `service` must exist or be empty. Both return the bytes of their record, whether or not it
  // could be written.
  uint64_t Begin(const std::string& service, v1::Change* change);
  uint64_t End(const std::string& service, v1::Change change, const absl::Status& outcome);

  // Returns how many records could not be written since this process was started.
  uint64_t failed_writes() const { return failed_writes_.load(std::memory_order_relaxed); }

 private:
  void ReadFile(const std::string& path);
  struct Recorded {
    std::string hash;  // of the line, for the log; empty: it was not written
    uint64_t bytes = 0;
  };
  Recorded Record(const std::string& service, const v1::Change& change);
  // Returns false if the line is not in the file.
  bool Write(const std::string& line);
  void MoveFiles();
  void Open();

  const std::string path_;
  EventLog* const events_;
  const uint64_t max_file_bytes_;
  const std::function<int64_t()> unix_micros_;
  std::mutex mutex_;
  FileDescriptor file_;  // none: it could not be opened
  uint64_t bytes_ = 0;   // of the file
  std::string last_hash_;
  uint64_t last_number_ = 0;
  int64_t last_unix_micros_ = 0;  // of the last record
  std::atomic<uint64_t> failed_writes_{0};
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_AUDIT_TRAIL_H_
