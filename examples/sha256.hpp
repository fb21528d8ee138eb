// sha256.hpp -- a digest of weights, by OpenSSL.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include <openssl/evp.h>

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void add(void const* bytes, std::size_t count) { EVP_DigestUpdate(context_.get(), bytes, count); }
  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &size);
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      char pair[3];
      std::snprintf(pair, sizeof pair, "%02x", digest[i]);
      text += pair;
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};
