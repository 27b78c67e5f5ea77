// The report of baton-peer.
#ifndef WORKER_EXAMPLES_PEER_REPORT_H_
#define WORKER_EXAMPLES_PEER_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "worker/examples/peer/load_generator.h"

namespace baton::peer {

// Returns true if nothing was lost, duplicated, reordered, corrupt or wrong, every connection was
// made, and none was lost, unless `reconnect` allows that.
bool IsClean(const Summary& summary, bool reconnect);

nlohmann::ordered_json WindowJson(std::string_view name, const WindowSummary& window);
nlohmann::ordered_json SummaryJson(const Summary& summary, bool clean);

// For people; several lines.
std::string SummaryText(const Summary& summary, bool clean);

}  // namespace baton::peer

#endif  // WORKER_EXAMPLES_PEER_REPORT_H_
