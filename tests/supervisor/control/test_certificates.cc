#include "tests/supervisor/control/test_certificates.h"

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"

namespace baton {
namespace {

constexpr char kConfiguration[] =
    "[req]\ndistinguished_name=dn\n[dn]\n"
    "[authority]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign\n"
    "[leaf]\nbasicConstraints=critical,CA:FALSE\n"
    "[ca]\ndefault_ca=this\n[this]\ndefault_md=sha256\ndatabase=";

}  // namespace

TestCertificates::TestCertificates() {
  char directory[] = "/tmp/baton-certificates-XXXXXX";
  BATON_CHECK(mkdtemp(directory) != nullptr);
  directory_ = directory;
  std::ofstream(directory_ + "/openssl.cnf") << kConfiguration << directory_ << "/revoked\n";
}

TestCertificates::~TestCertificates() { std::filesystem::remove_all(directory_); }

void TestCertificates::Run(const std::string& name, const std::string& arguments) const {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -config " +
      directory_ + "/openssl.cnf -keyout " + directory_ + "/new.key -out " + directory_ +
      "/new.crt " + arguments + " 2>" + directory_ + "/openssl.log";
  BATON_CHECK(std::system(command.c_str()) == 0);
  std::filesystem::rename(directory_ + "/new.key", Key(name));
  std::filesystem::rename(directory_ + "/new.crt", Certificate(name));
}

void TestCertificates::MakeAuthority(const std::string& name) const {
  Run(name, "-extensions authority -subj '/CN=" + name + "'");
}

void TestCertificates::Make(const std::string& authority, const std::string& name,
                            const std::string& common_name, const std::string& alternatives) const {
  Run(name, "-extensions leaf -subj '/CN=" + common_name + "' -CA " + Certificate(authority) +
                " -CAkey " + Key(authority) +
                (alternatives.empty() ? "" : " -addext 'subjectAltName=" + alternatives + "'"));
}

void TestCertificates::MakeRevocations(const std::string& authority, const std::string& name,
                                       const std::vector<std::string>& revoked,
                                       bool expired) const {
  const std::string database = directory_ + "/revoked";
  for (const char* part : {"", ".attr"}) std::ofstream(database + part, std::ios::trunc);
  const std::string ca = "openssl ca -config " + directory_ + "/openssl.cnf -cert " +
                         Certificate(authority) + " -keyfile " + Key(authority) + " ";
  const std::string log = " 2>" + directory_ + "/openssl.log";
  for (const std::string& one : revoked) {
    BATON_CHECK(std::system(absl::StrCat(ca, "-revoke ", Certificate(one), log).c_str()) == 0);
  }
  const std::string days =
      expired ? "-crl_lastupdate 20250101000000Z -crl_nextupdate 20250102000000Z" : "-crldays 1";
  BATON_CHECK(
      std::system((ca + "-gencrl " + days + " -out " + directory_ + "/new.crl" + log).c_str()) ==
      0);
  std::filesystem::rename(directory_ + "/new.crl", Revocations(name));
}

}  // namespace baton
