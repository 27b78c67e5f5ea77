// Values as operators read them.
#ifndef SUPERVISOR_CLI_FORMAT_H_
#define SUPERVISOR_CLI_FORMAT_H_

#include <cstdint>
#include <string>

#include "google/protobuf/message.h"
#include "proto/baton/v1/types.pb.h"

namespace baton {

std::string FormatDuration(double seconds);      // "340ms", "12s", "3h05m"
std::string FormatAgo(double seconds);           // "12s ago"
std::string FormatMicroseconds(double us);       // "26us", "1.2ms"
std::string FormatBytes(uint64_t bytes);         // "16MiB"
std::string FormatTime(int64_t unix_micros);     // UTC, "2025-01-31T09:15:00.123456Z"
std::string FormatSeconds(int64_t unix_micros);  // the same without a fraction
std::string FormatBlackout(const v1::BlackoutSummary& summary);
std::string FormatState(v1::WorkerState state);
std::string FormatState(v1::ConnectionState state);
std::string FormatState(v1::UpgradePhase phase);
std::string FormatWorkerId(uint64_t id);                           // "-" for none
std::string FormatWorker(uint64_t id);                             // "worker 1", "nobody"
std::string FormatCount(uint64_t count, const std::string& what);  // "1 shard", "2 shards"
// "1.0 -> 1.1"; a program that has not attached yet has no version.
std::string FormatVersions(const v1::Upgrade& upgrade);
std::string FormatProgress(const v1::Upgrade& upgrade);  // "watching, 25s left"
std::string FormatElapsed(const v1::Upgrade& upgrade);   // "-" while it is under way
std::string FormatMove(double blackout_us);              // "-" for none
// Makes the names of services and workers safe for a terminal: they are not trusted.
std::string Printable(const std::string& text);
std::string FormatVersion(const v1::Version& version);
// Returns one object, with every field under its name in the .proto files. Without `whitespace` it
// is one line, without a newline.
std::string ToJson(const google::protobuf::Message& message, bool whitespace = false);

}  // namespace baton

#endif  // SUPERVISOR_CLI_FORMAT_H_
