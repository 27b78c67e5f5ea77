#include "supervisor/metrics/families.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "supervisor/metrics/family.h"

namespace baton::metrics {
namespace {

enum class Meaning : uint8_t { kReceiverNotReady, kRetransmission, kCongestion };

// By the names of Soft-RoCE, mlx5, bnxt_re, irdma, hns and, in "counters", of every InfiniBand
// port.
struct DeviceCounter {
  const char* directory;
  const char* name;
  Meaning meaning;
};
constexpr DeviceCounter kCounters[] = {
    {"hw_counters", "send_rnr_err", Meaning::kReceiverNotReady},
    {"hw_counters", "rcvd_rnr_err", Meaning::kReceiverNotReady},
    {"hw_counters", "retry_rnr_exceeded_err", Meaning::kReceiverNotReady},
    {"hw_counters", "rnr_nak_retry_err", Meaning::kReceiverNotReady},
    {"hw_counters", "out_of_buffer", Meaning::kReceiverNotReady},
    {"hw_counters", "rnr_naks_rcvd", Meaning::kReceiverNotReady},
    {"hw_counters", "completer_retry_err", Meaning::kRetransmission},
    {"hw_counters", "retry_exceeded_err", Meaning::kRetransmission},
    {"hw_counters", "duplicate_request", Meaning::kRetransmission},
    {"hw_counters", "rcvd_seq_err", Meaning::kRetransmission},
    {"hw_counters", "out_of_seq_request", Meaning::kRetransmission},
    {"hw_counters", "out_of_sequence", Meaning::kRetransmission},
    {"hw_counters", "packet_seq_err", Meaning::kRetransmission},
    {"hw_counters", "local_ack_timeout_err", Meaning::kRetransmission},
    {"hw_counters", "implied_nak_seq_err", Meaning::kRetransmission},
    {"hw_counters", "roce_adp_retrans", Meaning::kRetransmission},
    {"hw_counters", "to_retransmits", Meaning::kRetransmission},
    {"hw_counters", "seq_err_naks_rcvd", Meaning::kRetransmission},
    {"hw_counters", "max_retry_exceeded", Meaning::kRetransmission},
    {"hw_counters", "RetransSegs", Meaning::kRetransmission},
    {"hw_counters", "np_cnp_sent", Meaning::kCongestion},
    {"hw_counters", "np_ecn_marked_roce_packets", Meaning::kCongestion},
    {"hw_counters", "rp_cnp_handled", Meaning::kCongestion},
    {"hw_counters", "rx_ecn_marked_pkts", Meaning::kCongestion},
    {"hw_counters", "tx_cnp_pkts", Meaning::kCongestion},
    {"hw_counters", "rx_cnp_pkts", Meaning::kCongestion},
    {"hw_counters", "cnpSent", Meaning::kCongestion},
    {"hw_counters", "cnpHandled", Meaning::kCongestion},
    {"hw_counters", "RxECNMrkd", Meaning::kCongestion},
    {"counters", "port_xmit_wait", Meaning::kCongestion},
    {"counters", "port_xmit_discards", Meaning::kCongestion},
};

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

}  // namespace

std::vector<prometheus::MetricFamily> DeviceFamilies(const std::vector<DescribedService>& all,
                                                     const std::string& devices) {
  std::vector<Family> families = {
      Family::Counter(
          "baton_device_rnr_total",
          "A receiver was not ready, by the port's own count, of all that use the device."),
      Family::Counter(
          "baton_device_retransmissions_total",
          "Packets that were lost, late or sent again, by the port's own count, likewise."),
      Family::Counter("baton_device_congestion_total",
                      "Signs of congestion, by the port's own count, likewise; port_xmit_wait "
                      "counts the port's ticks.")};
  std::set<std::pair<std::string, uint32_t>> seen;
  for (const auto& [service, described] : all) {
    if (!described.ok()) continue;
    const v1::DeviceState& device = described->service().device_state();
    if (device.port() == 0 || !seen.emplace(device.name(), device.port()).second) continue;
    const std::string port = absl::StrCat(device.port());
    for (const DeviceCounter& counter : kCounters) {
      const auto value = ReadNumber(absl::StrCat(devices, "/", device.name(), "/ports/", port, "/",
                                                 counter.directory, "/", counter.name));
      if (!value) continue;
      families[static_cast<size_t>(counter.meaning)].Add(
          {{"device", device.name()}, {"port", port}, {"counter", counter.name}},
          static_cast<double>(*value));
    }
  }
  return NotEmpty(families);
}

}  // namespace baton::metrics
