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

// Counters of one meaning, by the names that drivers have for them: Soft-RoCE, mlx5, bnxt_re, irdma
// and hns.
struct Meaning {
  Family family;
  std::vector<const char*> of_driver;     // in "hw_counters"
  std::vector<const char*> of_port = {};  // in "counters", of every InfiniBand port
};

std::vector<Meaning> Meanings() {
  return {
      {Family::Counter(
           "baton_device_rnr_total",
           "A receiver was not ready, by the port's own count, of all that use the device."),
       {"send_rnr_err", "rcvd_rnr_err", "retry_rnr_exceeded_err", "rnr_nak_retry_err",
        "out_of_buffer", "rnr_naks_rcvd"}},
      {Family::Counter(
           "baton_device_retransmissions_total",
           "Packets that were lost, late or sent again, by the port's own count, likewise."),
       {"completer_retry_err", "retry_exceeded_err", "duplicate_request", "rcvd_seq_err",
        "out_of_seq_request", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
        "implied_nak_seq_err", "roce_adp_retrans", "to_retransmits", "seq_err_naks_rcvd",
        "max_retry_exceeded", "RetransSegs"}},
      {Family::Counter("baton_device_congestion_total",
                       "Signs of congestion, by the port's own count, likewise; port_xmit_wait "
                       "counts the port's ticks."),
       {"np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rx_ecn_marked_pkts",
        "tx_cnp_pkts", "rx_cnp_pkts", "cnpSent", "cnpHandled", "RxECNMrkd"},
       {"port_xmit_wait", "port_xmit_discards"}},
  };
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

}  // namespace

std::vector<prometheus::MetricFamily> DeviceFamilies(const std::vector<DescribedService>& all,
                                                     const std::string& devices) {
  std::vector<Meaning> meanings = Meanings();
  std::set<std::pair<std::string, uint32_t>> seen;
  for (const auto& [service, described] : all) {
    if (!described.ok()) continue;
    const v1::DeviceState& device = described->service().device_state();
    if (device.port() == 0 || !seen.emplace(device.name(), device.port()).second) continue;
    const std::string port = absl::StrCat(device.port());
    for (Meaning& meaning : meanings) {
      const auto add = [&](const char* directory, const std::vector<const char*>& counters) {
        for (const char* const counter : counters) {
          const auto value = ReadNumber(absl::StrCat(devices, "/", device.name(), "/ports/", port,
                                                     "/", directory, "/", counter));
          if (!value) continue;
          meaning.family.Add({{"device", device.name()}, {"port", port}, {"counter", counter}},
                             static_cast<double>(*value));
        }
      };
      add("hw_counters", meaning.of_driver);
      add("counters", meaning.of_port);
    }
  }
  std::vector<Family> families;
  for (Meaning& meaning : meanings) families.push_back(std::move(meaning.family));
  return NotEmpty(families);
}

}  // namespace baton::metrics
