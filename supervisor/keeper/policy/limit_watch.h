// Counts what a service has, and compares that with the limits of its policy and of its keeper's
// control group. Reports an event once when the service comes near a limit.
#ifndef SUPERVISOR_KEEPER_POLICY_LIMIT_WATCH_H_
#define SUPERVISOR_KEEPER_POLICY_LIMIT_WATCH_H_

#include <boost/asio/steady_timer.hpp>
#include <string>
#include <vector>

#include "proto/baton/internal/driver.pb.h"
#include "supervisor/config/placement.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/sessions/worker_sessions.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread.
class LimitWatch {
 public:
  // All references outlive it. Calls Look() by itself every few seconds.
  LimitWatch(const CommonParts& parts, const WorkerSessions& workers,
             ReadFileFunction read_file = ReadSystemFile);

  v1::Accounts Look();

 private:
  struct Warning {
    const char* kind;  // of the event
    std::string key;   // what stays the same while the numbers change
    std::string text;
    bool begins = true;  // false: too little for it to begin, but it is not over
  };
  std::vector<Warning> FindWarnings(const internal::ServiceAccounts& counted);
  void CheckControlGroups(std::vector<Warning>* warnings) const;
  void CheckStandbys(std::vector<Warning>* warnings);
  void Tell(const std::vector<Warning>& warnings);

  const CommonParts parts_;
  const WorkerSessions& workers_;
  const ReadFileFunction read_file_;
  boost::asio::steady_timer timer_;
  std::vector<std::string> told_;  // keys of those that have begun and are not over
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_POLICY_LIMIT_WATCH_H_
