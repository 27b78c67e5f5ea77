// Writes a service's events to its keeper's log, a line for each. Peers and workers can cause a
// flood of events. The log then has a part of them, and says how many lines it lacks.
#ifndef SUPERVISOR_KEEPER_EVENT_LINES_H_
#define SUPERVISOR_KEEPER_EVENT_LINES_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <string_view>

#include "lib/log/line_limit.h"
#include "proto/baton/v1/types.pb.h"

namespace baton::keeper {

// Thread-compatible: the loop's thread.
class EventLines {
 public:
  explicit EventLines(boost::asio::io_context& loop) : timer_(loop) {}

  void Write(const v1::Event& event, std::string_view trace_parent);

 private:
  log::LineLimit limit_;
  boost::asio::steady_timer timer_;
  bool waits_ = false;  // to tell what was left out
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_EVENT_LINES_H_
